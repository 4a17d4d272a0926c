"""Gradient accumulation under DDP, protected. A failure draws a torn step's micro-batches again, or the last
one only where the job was submitted with ``accumulation: keep``; ``run.micro_step`` is right under both:

torchrun --nproc-per-node 3 examples/accumulation.py
"""

from __future__ import annotations

import contextlib
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import yoco

STEPS = int(sys.argv[1]) if sys.argv[1:] else 60
MICRO_BATCHES = 4

torch.set_num_threads(1)
run = yoco.join()

# Seed every generator: an unseeded one is carried over a failure too, but no second run would equal this one.
random.seed(run.rank)
np.random.seed(run.rank)
torch.manual_seed(0)

model = DistributedDataParallel(
    nn.Sequential(
        nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1)
    )
)
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
            last = run.micro_step == MICRO_BATCHES - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(batch), target) / MICRO_BATCHES
                loss.backward()
            if not last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if run.rank == 0 and run.step % 20 == 0 and not run.rehearsing:
                print(f"step {run.step} epoch {run.epoch} loss {loss.item():.5f}", flush=True)
            if run.step >= STEPS:
                return


run.loop(train)
