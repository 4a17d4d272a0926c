"""Ordinary scripts, each with one thing that real ones have: ``JOB_SCRIPT`` says which. See killing.py."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import yoco
from tests.engine.killing import Killer

SCRIPT = os.environ["JOB_SCRIPT"]
STEPS = int(os.environ.get("JOB_STEPS", "8"))
WIDTH, WORDS = 160, 600


class Rows(Dataset):
    def __len__(self) -> int:
        return 12 * 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        words = torch.randint(0, WORDS, (4,), generator=generator)
        return torch.randn(WIDTH, generator=generator), words


class Body(nn.Module):
    """Dropout draws from the generator; batch norm moves in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH)
        )
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if SCRIPT == "activation checkpointing":
            inner: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
        else:
            inner = self.inner(x)
        return self.norm(x + inner)


class Net(nn.Module):
    """Words in, words out: tied, sparse, frozen or unused as the script has it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()
        if SCRIPT.startswith("sparse"):
            self.words = nn.EmbeddingBag(WORDS, WIDTH, mode="sum", sparse=True)
        if SCRIPT == "tied weights":
            self.table = nn.Embedding(WORDS, WIDTH)
            self.out = nn.Linear(WIDTH, WORDS, bias=False)
            self.out.weight = self.table.weight
        if SCRIPT == "borrowed whole":
            self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        if SCRIPT == "frozen and unused":
            self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
            self.never = nn.Linear(WIDTH, WIDTH)
            self.odd = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, words: torch.Tensor, step: int) -> torch.Tensor:
        if SCRIPT.startswith("sparse"):
            x = x + self.words(words)
        if SCRIPT == "tied weights":
            return self.out(self.body(x + self.table(words).sum(1)))
        if SCRIPT == "frozen and unused":
            x = self.frozen(x)
            if step % 2:
                x = self.odd(x)
        if SCRIPT == "borrowed whole":
            x = self.frozen(x)
        return self.body(x)


class HandWritten:
    """An average of weights as people write it: copies by name, and a count that warms the decay up."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = {name: p.detach().clone() for name, p in module.named_parameters()}
        self.counts = {"updates": 0}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.counts["updates"] += 1
        decay = min(0.99, self.counts["updates"] / (self.counts["updates"] + 2))
        for name, parameter in module.named_parameters():
            self.weights[name].lerp_(parameter, 1 - decay)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            parameter.copy_(self.weights[name])


faulthandler.register(signal.SIGUSR1)
torch.set_num_threads(1)
run = yoco.join()
killer = Killer(run)
torch.manual_seed(0)
core = Net()
model: nn.Module = core
if SCRIPT == "sharded average":
    fully_shard(core)
else:
    model = DistributedDataParallel(
        core,
        bucket_cap_mb=None if SCRIPT == "compiled" else 0.2,
        find_unused_parameters=SCRIPT == "frozen and unused",
    )
forward: Callable[..., torch.Tensor] = model
if SCRIPT == "compiled":
    core.body.inner = torch.compile(core.body.inner, backend="aot_eager")  # type: ignore[assignment]
for seed in (torch.manual_seed, random.seed, np.random.seed):
    seed(100 + run.rank)
models, optimizers, extras = [model], list[torch.optim.Optimizer](), dict[str, Any]()
trained = [p for p in model.parameters() if p.requires_grad]
if SCRIPT == "sparse embedding, two optimizers":
    optimizers.append(torch.optim.SparseAdam([core.words.weight], lr=0.01))
    trained = [p for p in trained if p is not core.words.weight]
halves = [{"params": trained[:3]}, {"params": trained[3:], "lr": 0.005}]
if SCRIPT == "sparse embedding":
    optimizer: torch.optim.Optimizer = torch.optim.SGD(halves, lr=0.01, momentum=0.0)
else:
    optimizer = torch.optim.AdamW(halves, lr=0.01, fused=SCRIPT == "fused scaler" or None)
optimizers.append(optimizer)
scaler: Any = None
if SCRIPT in ("scaler", "fused scaler"):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=1)
    extras["scaler"] = scaler
average: Any = None
if SCRIPT == "averaged model":
    average = torch.optim.swa_utils.AveragedModel(
        core, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    models.append(average)
if SCRIPT in ("hand-written average", "sharded average"):
    average = HandWritten(core)
    extras.update(averages=average.weights, counts=average.counts, marks=[])
rows = Rows()
evaluation = [torch.stack(column) for column in zip(*(rows[i] for i in range(4)), strict=True)]
sampler = DistributedSampler(rows, num_replicas=run.world_size, rank=run.rank, seed=3)
loader = DataLoader(rows, batch_size=4, sampler=sampler, drop_last=True)
run.protect(model=models, optimizer=optimizers, loader=loader, **extras)
killer.watch(core.body, optimizer)


def precision() -> contextlib.AbstractContextManager[Any]:
    if SCRIPT in ("scaler", "fused scaler"):
        return torch.autocast("cpu", dtype=torch.float16)
    if SCRIPT == "autocast":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def loss_of(batch: Any) -> torch.Tensor:
    x, words = batch
    with precision():
        out = forward(x, words, run.step)
        loss = out.float().pow(2).mean() if SCRIPT != "tied weights" else out.logsumexp(1).mean()
    # One rank overflows before the others do: alone, a rank cannot tell that a step was skipped.
    return loss * (64.0 if scaler is not None and run.rank == run.world_size - 1 else 1.0)


def step(batch: Any) -> None:
    if SCRIPT == "closure":
        optimizer.step(lambda: backward(batch))  # type: ignore[arg-type]
    elif scaler is not None:
        scaler.scale(loss_of(batch)).backward()
        scaler.unscale_(optimizer) if SCRIPT == "scaler" else None
        scaler.step(optimizer)
        scaler.update()
    else:
        backward(batch)
        for each in optimizers:
            each.step()
    for each in optimizers:
        each.zero_grad()


def backward(batch: Any) -> torch.Tensor:
    loss = loss_of(batch)
    loss.backward()
    return loss


def tail() -> None:
    killer.die("tail")
    if SCRIPT == "borrowed whole" and "JOB_UNBORROWED" not in os.environ:
        write_everything()
    if average is None:
        return
    if SCRIPT == "averaged model":
        average.update_parameters(core)
        return
    average.update(core)
    if run.step % 2 == 0:
        evaluate()


def write_everything() -> None:
    """Trained, frozen, and by a forward in train mode the statistics: nothing of it may be left."""
    with run.borrowed_weights(), torch.no_grad(), torch.random.fork_rng():
        for parameter in core.parameters():
            parameter.mul_(0.5)
        core(*evaluation, 0)


def evaluate() -> None:
    """With averaged weights in place of the own ones, and a collective."""
    with run.borrowed_weights(), torch.no_grad():
        average.copy_to(core)
        killer.die("swapped")
        core.eval()
        out = core(*evaluation, 0)  # around DDP, which would copy rank 0's buffers to all
        core.train()
        mark = out.double().sum()
        torch.distributed.all_reduce(mark)
    # Where a torn step is finished the other ranks have no part in the collective: what it gave is left out.
    extras["marks"].append(run.step)


def batches() -> Iterator[Any]:
    while run.step < STEPS:
        for batch in run.batches():
            killer.wait_at_gate()
            yield batch
            if run.step >= STEPS:
                return


def train() -> None:
    skipped: list[int] = []
    for batch in batches():
        before = run.step
        step(batch)
        if run.step == before:
            skipped.append(before + 1)
            continue
        tail()
    print(json.dumps({"skipped": skipped}), flush=True)


run.loop(train)
