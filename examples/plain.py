"""A plain loop with batches of its own, protected. Ranks train apart, none of their state is lost with them.

python examples/plain.py
"""

from __future__ import annotations

import random
import sys

import numpy as np
import torch
from torch import nn

import yoco

STEPS = int(sys.argv[1]) if sys.argv[1:] else 100

torch.set_num_threads(1)
run = yoco.join()
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
generator = torch.Generator().manual_seed(5)

run.protect(model=model, optimizer=optimizer, generator=generator)


def train() -> None:
    """Without a loader ``batches`` gives None for ever; the named generator carries the position."""
    for _ in run.batches():
        batch = torch.randn(32, 64, generator=generator)
        loss = nn.functional.mse_loss(model(batch), batch[:, :8].sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.step % 20 == 0 and not run.rehearsing:
            print(f"step {run.step} loss {loss.item():.5f}", flush=True)
        if run.step >= STEPS:
            return


run.loop(train)
