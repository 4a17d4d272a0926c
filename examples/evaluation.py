"""Evaluation, metrics over all ranks, checkpoints, early stopping and counters inside a protected loop:

torchrun --nproc-per-node 3 examples/evaluation.py [STEPS [FOLDER]]

Two rules make all of it right after a recovery at any point. What must outlive one (counters, the best
value, the decision to stop) lies in an extra, ``progress``, and is changed before ``optimizer.step()``. What
talks to other ranks between two steps (evaluation, checkpoints) is done at the start of the next batch: a
failure there enters ``train`` again at that very batch, and does it again.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import yoco

STEPS = int(sys.argv[1]) if sys.argv[1:] else 200
FOLDER = Path(sys.argv[2] if sys.argv[2:] else "checkpoints")
EVALUATE_EVERY = 3
PATIENCE = 2
"""evaluations without a better value before training stops"""

torch.set_num_threads(1)
run = yoco.join()
random.seed(run.rank)
np.random.seed(run.rank)
torch.manual_seed(0)

model = DistributedDataParallel(
    nn.Sequential(
        nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1)
    )
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

inputs = torch.randn(660, 64)
data = TensorDataset(inputs[:600], inputs[:600, :8].sum(1, keepdim=True))
held_out = TensorDataset(inputs[600:], inputs[600:, :8].sum(1, keepdim=True))
sampler = DistributedSampler(data, dist.get_world_size(), dist.get_rank(), seed=0)
loader = DataLoader(data, batch_size=20, sampler=sampler, drop_last=True)
torch.manual_seed(1000 + run.rank)

progress = {"samples": 0, "evaluations": 0, "best": float("inf"), "worse": 0, "stop": False}

run.protect(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, progress=progress)


def evaluate() -> None:
    """The mean error over what is held out, each rank its part; all ranks decide alike."""
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for index in range(run.rank, len(held_out), run.world_size):
            sample, target = held_out[index]
            # The inner module: evaluation needs no gradients exchanged.
            error = nn.functional.mse_loss(model.module(sample[None]), target[None])
            total += torch.tensor([error.item(), 1.0], dtype=torch.float64)
    dist.all_reduce(total)
    model.train()
    error = float(total[0] / total[1])
    better = error < progress["best"]
    progress["evaluations"] += 1
    progress["best"] = min(error, progress["best"])
    progress["worse"] = 0 if better else progress["worse"] + 1
    progress["stop"] = progress["worse"] >= PATIENCE
    scheduler.step(error)


def save() -> None:
    """All ranks write one checkpoint. A save that a failure cut short is made again under its name."""
    if run.rehearsing:
        return
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "progress": dict(progress)}
    dcp.save(state, checkpoint_id=FOLDER / f"step-{run.step}")
    run.checkpointed(run.step)


def train() -> None:
    """Entered again, in position, after every recovery."""
    while run.step < STEPS:
        for batch, target in run.batches():
            if run.step and run.step % EVALUATE_EVERY == 0:
                evaluate()
                save()
                if progress["stop"]:
                    return
            loss = nn.functional.mse_loss(model(batch), target)
            loss.backward()
            progress["samples"] += len(batch)
            optimizer.step()
            optimizer.zero_grad()
            if run.step >= STEPS:
                return


run.loop(train)
if run.rank == 0:
    print(f"stopped after step {run.step}: {progress}", flush=True)
