"""A small training run, its snapshot, and a standby that takes the snapshot over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from agent.training.batches import batch_hash
from agent.training.state import RankState

WIDTH = 192  # 192 x 192 floats are 147 kB: weights lie in the arena, biases in the small blob


class Net(nn.Module):
    """Dropout draws, batch norm moves in forward, a mask is not persistent, a matrix is frozen."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(16, WIDTH, dtype=dtype)
        self.norm = nn.BatchNorm1d(WIDTH, dtype=dtype)
        self.drop = nn.Dropout(0.2)
        self.middle = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.frozen = nn.Linear(WIDTH, WIDTH, dtype=dtype).requires_grad_(False)
        self.last = nn.Linear(WIDTH, 16, dtype=dtype)
        self.register_buffer("seen", torch.zeros(16, dtype=dtype), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.mean(0), alpha=0.1)
        y = self.drop(self.norm(self.first(x)).relu())
        return self.last(self.frozen(self.middle(y).relu())) + self.seen


class Tied(nn.Module):
    """Input and output weights are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 2048, bias=False)
        self.last = nn.Linear(16, 2048, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).relu() @ self.last.weight


@dataclass
class Run:
    """One process's worth of training objects."""

    model: nn.Module
    optimizer: Any
    scheduler: Any
    state: RankState
    after: Callable[[Run, float], None] | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    hashes: list[str] = field(default_factory=list)

    def backward(self) -> float:
        (x,) = self.state.feeds[0].next()
        self.hashes.append(batch_hash(x))
        loss = (self.model(x) - x).pow(2).mean()
        loss.backward()
        return loss.item()

    def step(self) -> float:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            loss = self._closure_step()
        else:
            loss = self.backward()
            self.optimizer.step()
        self.optimizer.zero_grad()
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif self.scheduler is not None:
            self.scheduler.step()
        if self.after is not None:
            self.after(self, loss)
        return loss

    def _closure_step(self) -> float:
        (x,) = self.state.feeds[0].next()
        self.hashes.append(batch_hash(x))

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = (self.model(x) - x).pow(2).mean()
            loss.backward()
            return loss

        return float(self.optimizer.step(closure))

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]


def build(
    seed: int,
    make_optimizer: Callable[[list[nn.Parameter]], Any],
    make_scheduler: Callable[[Any], Any] = lambda optimizer: None,
    make_model: Callable[[], nn.Module] = Net,
    extras: Callable[[Run], dict[str, Any]] = lambda run: {},
    after: Callable[[Run, float], None] | None = None,
) -> Run:
    torch.manual_seed(seed)
    model = make_model()
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
    scheduler = make_scheduler(optimizer)
    dtype = next(model.parameters()).dtype
    data = torch.randn(120, 16, generator=torch.Generator().manual_seed(7)).to(dtype)
    loader = DataLoader(TensorDataset(data), batch_size=8, shuffle=True)
    run = Run(model, optimizer, scheduler, None, after)  # type: ignore[arg-type]
    run.extras = extras(run)
    run.state = RankState(
        models=[model],
        optimizers=[optimizer],
        schedulers=[scheduler] if scheduler is not None else [],
        loaders=[loader],
        extras=run.extras,
    )
    return run


@dataclass(frozen=True)
class Snapshot:
    """What custody would hold of a rank between two steps."""

    arena: dict[str, bytes]
    small: bytes
    fence: bytes
    digest: str


def snapshot(run: Run) -> Snapshot:
    run.state.rehome()
    return Snapshot(
        arena_bytes(run.state), run.state.capture_small(), run.state.capture_fence(),
        run.state.digest()[0],
    )  # fmt: skip


def arena_bytes(state: RankState) -> dict[str, bytes]:
    """The live arena's tensors, read through the descriptors that an agent would hold."""
    import os

    manifest, storages = state.arena.manifest, state.arena.storages()
    assert manifest is not None
    fds = {i: storage._share_fd_cpu_()[0] for i, storage in storages.items()}
    return {e.name: os.pread(fds[e.storage_id], e.bytes, e.offset_bytes) for e in manifest.tensors}


def write_arena(state: RankState, arena: dict[str, bytes]) -> None:
    """What a carrier does: bytes into the target's storages, by descriptor."""
    import os

    state.rehome()
    manifest, storages = state.arena.manifest, state.arena.storages()
    assert manifest is not None
    assert {entry.name for entry in manifest.tensors} == set(arena)
    for entry in manifest.tensors:
        fd = storages[entry.storage_id]._share_fd_cpu_()[0]
        assert os.pwrite(fd, arena[entry.name], entry.offset_bytes) == entry.bytes


def restore(run: Run, saved: Snapshot) -> None:
    write_arena(run.state, saved.arena)
    run.state.restore_small(saved.small)
    run.state.restore_fence(saved.fence)
