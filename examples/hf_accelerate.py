"""Hugging Face Accelerate around a plain loop, protected:

torchrun --nproc-per-node 3 examples/hf_accelerate.py
"""

from __future__ import annotations

import random
import sys

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import yoco
import yoco.accelerate

STEPS = int(sys.argv[1]) if sys.argv[1:] else 200

torch.set_num_threads(1)
run = yoco.join()  # before the Accelerator, which takes the group that exists
random.seed(run.rank)
np.random.seed(run.rank)
torch.manual_seed(0)

inputs = torch.randn(660, 64)
data = TensorDataset(inputs, inputs[:, :8].sum(1, keepdim=True))
plain = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 1))
adamw = torch.optim.AdamW(plain.parameters(), lr=1e-3)

accelerator = Accelerator(cpu=True)
model, optimizer, loader, scheduler = accelerator.prepare(
    plain,
    adamw,
    DataLoader(data, batch_size=20, shuffle=True, drop_last=True),
    torch.optim.lr_scheduler.CosineAnnealingLR(adamw, T_max=3 * STEPS),
)
yoco.accelerate.protect(
    run, accelerator, model=model, optimizer=optimizer, loader=loader, scheduler=scheduler
)


def train() -> None:
    """Entered again, in position, after every recovery. Batches come from the run, not from the loader."""
    while run.step < STEPS:
        for batch, target in run.batches():
            loss = nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if accelerator.is_main_process and run.step % 20 == 0 and not run.rehearsing:
                print(f"step {run.step} epoch {run.epoch} loss {loss.item():.5f}", flush=True)
            if run.step >= STEPS:
                return


run.loop(train)
