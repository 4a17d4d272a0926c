"""Several optimizers in one batch are one commit: no rank is left with half of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Twin, assert_identical
from .harness import Coordinator

Job = Callable[..., Coordinator]
STEPS = 9
DDP = {"JOB_KIND": "ddp", "JOB_STEPS": str(STEPS), "JOB_SECOND": "1"}
FSDP2 = {"JOB_KIND": "fsdp2", "JOB_STEPS": str(STEPS), "JOB_SECOND": "1"}
SELDOM = {"JOB_KIND": "ddp", "JOB_STEPS": str(STEPS), "JOB_SECOND": "2"}


@pytest.mark.parametrize(
    ("settings", "point", "source", "finish"),
    [
        (DDP, "inside", "replica", "tail"),
        (DDP, "between", "replica", "tail"),
        (DDP, "second", "replica", "tail"),
        (DDP, "tail", "custody", "tail"),
        (SELDOM, "between", "replica", "tail"),
        (SELDOM, "tail", "custody", "tail"),
        (FSDP2, "between", "shadow", "apply"),
        (FSDP2, "tail", "custody", "tail"),
    ],
)
def test_a_rank_that_dies_between_two_optimizers_is_replaced_bit_for_bit(
    job: Job, twin: Twin, settings: dict[str, str], point: str, source: str, finish: str
) -> None:
    coordinator = job(3, JOB_KILL=f"1:6:{point}", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, source, finish)]
    assert coordinator.resume_at == 6
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("point", ["between", "tail"])
def test_a_batch_that_only_one_of_two_optimizers_steps_in_is_whole_all_the_same(
    job: Job, twin: Twin, point: str
) -> None:
    coordinator = job(3, JOB_KILL=f"1:7:{point}", **SELDOM)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert [(rank, finish) for rank, _name, finish in coordinator.moved] == [(1, "tail")]
    assert_identical(coordinator, twin(3, **SELDOM), 3, STEPS)


@pytest.mark.parametrize("point", ["between", "second", "tail"])
def test_a_node_lost_between_two_optimizers_is_healed_from_a_replica(
    job: Job, twin: Twin, point: str
) -> None:
    coordinator = job(3, JOB_KILL=f"1:6:{point}", **DDP)
    coordinator.open_gate()
    coordinator.custody_lost.add(coordinator.ranks[1].pid)
    coordinator.run(coordinator.finished, 60)
    assert [(rank, name) for rank, name, _finish in coordinator.moved] == [(1, "replica")]
    assert_identical(coordinator, twin(3, **DDP), 3, STEPS)


@pytest.mark.parametrize("settings", [DDP, SELDOM], ids=["every batch", "every second"])
def test_a_rank_that_applies_late_is_served_only_when_every_optimizer_has_stepped(
    job: Job, twin: Twin, settings: dict[str, str]
) -> None:
    """Rank 0 never hears of the vote; the rank that dies is given rank 0's arena."""
    coordinator = job(
        3, JOB_KILL="1:6:between", JOB_UNKNOWN="0:6", **settings, options={"standbys": 1}
    )
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, "replica", "tail")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)
