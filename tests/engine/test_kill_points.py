"""A rank is killed at each point of a step; the job goes on and equals its unbroken twin, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Twin, assert_identical
from .harness import Coordinator

Job = Callable[..., Coordinator]
STEPS = 9
COMMON = {"JOB_STEPS": str(STEPS)}

# (point, where the lost rank's state comes from, what was left of the step)
DDP_POINTS = [
    ("data", "custody", "none", 5),
    ("forward", "custody", "none", 5),
    ("backward", "custody", "none", 5),
    ("prepared", "custody", "none", 5),
    ("voted", "replica", "tail", 6),
    ("before", "replica", "tail", 6),
    ("inside", "replica", "tail", 6),
    ("after", "replica", "tail", 6),
    ("tail", "custody", "tail", 6),
]


@pytest.mark.parametrize(("point", "source", "finish", "resume_at"), DDP_POINTS)
def test_a_ddp_rank_killed_at_this_point_is_replaced_bit_for_bit(
    job: Job, twin: Twin, point: str, source: str, finish: str, resume_at: int
) -> None:
    rank = len(point) % 3
    shift = 1 if point == "after" else 0  # the hook sees the step before it is counted
    coordinator = job(3, JOB_KIND="ddp", JOB_KILL=f"{rank}:{6 - shift}:{point}", **COMMON)
    coordinator.open_gate()
    coordinator.run(coordinator.finished)
    assert coordinator.moved == [(rank, source, finish)]
    assert coordinator.resume_at == resume_at
    assert_identical(coordinator, twin(3, JOB_KIND="ddp", **COMMON), 3, STEPS)


FSDP = {"JOB_KIND": "fsdp2", "JOB_WIDTH": "256", **COMMON}
"""wide enough for shards of 64 KiB and more, which lie in the arena"""
FSDP_POINTS = [
    ("data", "custody", "none", 5),
    ("forward", "custody", "none", 5),
    ("backward", "custody", "none", 5),
    ("prepared", "custody", "none", 5),
    ("inside", "shadow", "apply", 6),
    ("tail", "custody", "tail", 6),
]


@pytest.mark.parametrize(("point", "source", "finish", "resume_at"), FSDP_POINTS)
def test_an_fsdp2_rank_killed_at_this_point_is_replaced_bit_for_bit(
    job: Job, twin: Twin, point: str, source: str, finish: str, resume_at: int
) -> None:
    rank = (len(point) + 1) % 3
    coordinator = job(3, JOB_KILL=f"{rank}:6:{point}", **FSDP)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(rank, source, finish)]
    assert coordinator.resume_at == resume_at
    assert_identical(coordinator, twin(3, **FSDP), 3, STEPS)


@pytest.mark.parametrize(
    ("kind", "rank"), [("ddp", 0), ("ddp", 1), ("ddp", 2), ("ddp", 3), ("fsdp2", 0), ("fsdp2", 3)]
)
def test_each_of_four_ranks_may_die_with_loader_workers(
    job: Job, twin: Twin, kind: str, rank: int
) -> None:
    settings = {"JOB_KIND": kind, "JOB_WORKERS": "2", **COMMON}
    coordinator = job(4, JOB_KILL=f"{rank}:6:forward", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(rank, "custody", "none")]
    assert_identical(coordinator, twin(4, **settings), 4, STEPS)


def test_a_job_that_is_left_alone_equals_its_twin(job: Job, twin: Twin) -> None:
    coordinator = job(3, JOB_KIND="ddp", **COMMON)
    coordinator.open_gate()
    coordinator.run(coordinator.finished)
    assert coordinator.generation == 0
    assert_identical(coordinator, twin(3, JOB_KIND="ddp", **COMMON), 3, STEPS)
