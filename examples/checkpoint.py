"""Going on from a checkpoint where nothing else is left, as after the loss of a whole node under FSDP2:

torchrun --nproc-per-node 3 examples/checkpoint.py [STEPS [FOLDER [EVERY]]]

``run`` is saved beside model and optimizer: it holds the step, this rank's place in its data, generators,
scheduler and extras. A job that is started again loads the newest checkpoint and goes on at the next step.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import yoco

STEPS = int(sys.argv[1]) if sys.argv[1:] else 200
FOLDER = Path(sys.argv[2] if sys.argv[2:] else "checkpoints")
EVERY = int(sys.argv[3]) if sys.argv[3:] else 20
"""committed steps between two checkpoints"""

torch.set_num_threads(1)
run = yoco.join()
random.seed(run.rank)
np.random.seed(run.rank)
torch.manual_seed(0)

model = nn.Sequential(
    nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.ReLU(), nn.Dropout(0.1)),
    nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU()),
    nn.Linear(256, 1),
)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

inputs = torch.randn(600, 64)
data = TensorDataset(inputs, inputs[:, :8].sum(1, keepdim=True))
sampler = DistributedSampler(data, dist.get_world_size(), dist.get_rank(), seed=0)
loader = DataLoader(data, batch_size=20, sampler=sampler, drop_last=True)
torch.manual_seed(1000 + run.rank)

run.protect(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)


def state() -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "run": run.state_dict()}


def save() -> None:
    """Every ``EVERY`` steps, at the start of a batch: a save that a failure cut short is made again."""
    if run.rehearsing or run.step % EVERY or not run.step:
        return
    with run.saving():  # around state() too: torch steps an optimizer that has no state to read it
        dcp.save(state(), checkpoint_id=FOLDER / f"step-{run.step}")
    run.checkpointed(run.step)


def load() -> None:
    """The newest whole checkpoint, before training. A standby gets its state from the rank it replaces."""
    # Written last: without it a checkpoint is not whole.
    steps = [int(path.parent.name[5:]) for path in FOLDER.glob("step-*/.metadata")]
    if run.rehearsing or not steps:
        return
    loaded = state()
    dcp.load(loaded, checkpoint_id=FOLDER / f"step-{max(steps)}")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    run.load_state_dict(loaded["run"])


def train() -> None:
    """Entered again, in position, after every recovery."""
    while run.step < STEPS:
        for batch, target in run.batches():
            save()
            loss = nn.functional.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if run.step >= STEPS:
                return


load()
run.loop(train)
if run.rank == 0:
    print(f"stopped after step {run.step}", flush=True)
