"""A standby set up as any provisional rank takes any rank: shapes, offsets, state, all its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.planner_helpers import _create_write_items
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from agent.training.locality import local
from agent.training.state import RankState

from . import solo
from .ranks import run_alone, run_ranks

WORLD = 3
STEPS = 3


class Net(nn.Module):
    """Rows that three ranks cannot share evenly, one parameter that not every rank gets a part of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 100)
        self.second = nn.Linear(100, 400)
        self.norm = nn.BatchNorm1d(400)
        self.last = nn.Linear(400, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.relu(self.second(torch.relu(self.first(x))))))


def build(rank: int, world_size: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = Net()
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("shard",))
    fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(60, 8, generator=torch.Generator().manual_seed(1)))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    state = RankState(
        models=[model], optimizers=[optimizer], loaders=[loader], rank=rank, world_size=world_size
    )
    return model, optimizer, state


def train(model: nn.Module, optimizer: torch.optim.Optimizer, state: RankState, steps: int) -> None:
    for _ in range(steps):
        (x,) = state.feeds[0].next()
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def offsets(model: nn.Module) -> list[tuple[str, Any, Any]]:
    """What a distributed checkpoint would write from this process."""
    found = []
    for name, tensor in model.state_dict().items():
        for item in _create_write_items(name, tensor):
            chunk = item.tensor_data.chunk
            found.append((name, tuple(chunk.offsets), tuple(chunk.sizes)))
    return found


def shared(state: RankState) -> dict[str, bytes]:
    state.rehome()
    names = {entry.name for entry in state.arena.manifest.tensors}
    return {h.name: h.tensor.numpy().tobytes() for h in state.catalogue.held if h.name in names}


def real_rank(rank: int, world_size: int) -> dict[str, Any]:
    model, optimizer, state = build(rank, world_size)
    torch.manual_seed(100 + rank)
    train(model, optimizer, state, STEPS)
    found = {
        "shared": shared(state),
        "shapes": {entry.name: tuple(entry.shape) for entry in state.arena.manifest.tensors},
        "small": state.capture_small(),
        "fence": state.capture_fence(),
        "digest": state.digest()[0],
        "schema": state.schema_hash(),
        "offsets": offsets(model),
        "next": state.feeds[0].next()[0].tolist(),
    }
    state.capture_small()
    model(torch.randn(4, 8)).sum().backward()
    state.capture_fence()
    return {**found, "written outside the optimizer": sorted(state.written_outside)}


def standby(provisional: int, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take every rank in turn, the own one last."""
    solo.start(provisional, WORLD)
    model, optimizer, state = build(provisional, WORLD)
    train(model, optimizer, state, 2)
    state.rehome()  # as a warm standby does, before it knows whose shapes it will take
    found = []
    for rank in [*(r for r in range(WORLD) if r != provisional), provisional]:
        solo.take_rank(rank)
        state.become_rank(rank)
        state.rehome()
        shapes = {entry.name: tuple(entry.shape) for entry in state.arena.manifest.tensors}
        load(state, saved[rank])
        found.append(
            {
                "rank": rank,
                "dist": dist.get_rank(),
                "digest": state.digest()[0],
                "schema": state.schema_hash(),
                "offsets": offsets(model),
                "shared": shared(state),
                "shapes": shapes,
                "next": state.feeds[0].next()[0].tolist(),
            }
        )
        train(model, optimizer, state, 1)
    return found


@torch.no_grad()
def load(state: RankState, saved: dict[str, Any]) -> None:
    for held in state.catalogue.held:
        if held.name in saved["shared"]:
            data = bytearray(saved["shared"][held.name])
            held.tensor.copy_(
                torch.frombuffer(data, dtype=held.tensor.dtype).view(held.tensor.shape)
            )
    state.restore_small(saved["small"])
    state.restore_fence(saved["fence"])


@pytest.fixture(scope="module")
def saved() -> list[dict[str, Any]]:
    return run_ranks(real_rank, WORLD)


def test_every_rank_is_adopted_whole_from_every_provisional_rank(
    saved: list[dict[str, Any]],
) -> None:
    answers = run_alone(standby, [(provisional, saved) for provisional in range(WORLD)])
    taken = [item for answer in answers for item in answer]
    assert sorted(item["rank"] for item in taken) == sorted(list(range(WORLD)) * WORLD)
    for item in taken:
        rank = item["rank"]
        assert item["dist"] == rank
        for key in ("schema", "shapes", "offsets", "shared", "digest", "next"):
            assert item[key] == saved[rank][key], (rank, key)


def test_ranks_of_uneven_shards_differ_in_shape_so_that_adoption_is_put_to_the_test(
    saved: list[dict[str, Any]],
) -> None:
    assert len({answer["schema"] for answer in saved}) > 1
    assert len({repr(answer["offsets"]) for answer in saved}) == WORLD


def test_fsdp2_itself_writes_no_shard_outside_the_optimizer(saved: list[dict[str, Any]]) -> None:
    assert [answer["written outside the optimizer"] for answer in saved] == [[]] * WORLD


def hsdp_rank(rank: int, world_size: int) -> tuple[str, list[int]]:
    torch.manual_seed(0)
    model = nn.Linear(8, 7)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    state = RankState(models=[model], rank=rank, world_size=world_size)
    assert local(model.weight).shape[0] in (4, 3)
    return state.parallelism(), state.replica_group(world_size)


def test_hsdp_replicas_are_the_ranks_with_the_same_shard() -> None:
    assert run_ranks(hsdp_rank, 4) == [
        ("hsdp", [0, 2]), ("hsdp", [1, 3]), ("hsdp", [0, 2]), ("hsdp", [1, 3]),
    ]  # fmt: skip
