"""Sharded inside two groups of ranks, replicated between them (HSDP), protected. An even number of ranks:

torchrun --nproc-per-node 4 examples/hsdp.py
"""

from __future__ import annotations

import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import yoco

STEPS = int(sys.argv[1]) if sys.argv[1:] else 200

torch.set_num_threads(1)
run = yoco.join()

# Seed every generator: an unseeded one is carried over a failure too, but no second run would equal this one.
random.seed(run.rank)
np.random.seed(run.rank)
torch.manual_seed(0)

model = nn.Sequential(
    nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.ReLU(), nn.Dropout(0.1)),
    nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU()),
    nn.Linear(256, 1),
)
# Two copies of the model, each sharded over half of the ranks.
mesh = init_device_mesh(
    "cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard")
)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

inputs = torch.randn(6000, 64)
data = TensorDataset(inputs, inputs[:, :8].sum(1, keepdim=True))
sampler = DistributedSampler(data, dist.get_world_size(), dist.get_rank(), seed=0)
loader = DataLoader(data, batch_size=20, sampler=sampler, drop_last=True)
torch.manual_seed(1000 + run.rank)

run.protect(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)


def train() -> None:
    """Entered again, in position, after every recovery: keep what steers training out of its locals."""
    while run.step < STEPS:
        for batch, target in run.batches():
            loss = nn.functional.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if run.rank == 0 and run.step % 20 == 0 and not run.rehearsing:
                print(f"step {run.step} epoch {run.epoch} loss {loss.item():.5f}", flush=True)
            if run.step >= STEPS:
                return


run.loop(train)
