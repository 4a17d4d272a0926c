"""What a script does after the optimizer: derived from the loss, cut short, or writing what it must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Twin, assert_identical
from .harness import Coordinator, Failed

Job = Callable[..., Coordinator]
STEPS = 9
COMMON = {"JOB_STEPS": str(STEPS)}
PLATEAU = {"JOB_KIND": "ddp", "JOB_PLATEAU": "1", **COMMON}
COLLECTIVE = {"JOB_KIND": "ddp", "JOB_TAIL": "collective", **COMMON}


@pytest.mark.parametrize("lost", [False, True], ids=["process", "node"])
@pytest.mark.parametrize("point", ["voted", "inside", "after", "tail"])
def test_what_follows_the_loss_is_finished_with_the_loss_of_the_unbroken_run(
    job: Job, twin: Twin, point: str, lost: bool
) -> None:
    shift = 1 if point == "after" else 0
    coordinator = job(3, JOB_KILL=f"1:{6 - shift}:{point}", **PLATEAU)
    coordinator.open_gate()
    if lost:
        coordinator.custody_lost.add(coordinator.ranks[1].pid)
    coordinator.run(coordinator.finished, 60)
    assert coordinator.resume_at == 6
    assert_identical(coordinator, twin(3, **PLATEAU), 3, STEPS)


@pytest.mark.parametrize("point", ["inside", "tail"])
def test_a_scheduler_that_stepped_between_two_epochs_is_not_stepped_by_other_weights(
    job: Job, twin: Twin, point: str
) -> None:
    coordinator = job(3, JOB_KILL=f"1:7:{point}", **PLATEAU)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.resume_at == 7
    assert_identical(coordinator, twin(3, **PLATEAU), 3, STEPS)


@pytest.mark.parametrize(
    ("kind", "point"), [("ddp", "tail"), ("fsdp2", "inside"), ("fsdp2", "tail")]
)
def test_losses_of_several_micro_batches_are_told_again_in_their_order(
    job: Job, twin: Twin, kind: str, point: str
) -> None:
    settings = {**PLATEAU, "JOB_KIND": kind, "JOB_MICRO": "3"}
    coordinator = job(3, JOB_KILL=f"1:6:{point}", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("extra", [{}, {"JOB_PLATEAU": "1"}], ids=["plain", "plateau"])
def test_survivors_whose_tail_a_broken_collective_cut_short_finish_it(
    job: Job, twin: Twin, extra: dict[str, str]
) -> None:
    settings = {**COLLECTIVE, **extra}
    coordinator = job(3, JOB_KILL="1:6:tail", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, "custody", "tail")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("extra", [{}, {"JOB_PLATEAU": "1"}], ids=["plain", "plateau"])
def test_a_collective_in_the_tail_of_a_rank_that_applied_late_pairs_with_nobodys(
    job: Job, twin: Twin, extra: dict[str, str]
) -> None:
    settings = {**COLLECTIVE, **extra}
    coordinator = job(3, JOB_KILL="1:6:inside", JOB_UNKNOWN="0:6", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, "replica", "tail")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_replicas_agree_on_their_schedulers_too(twin: Twin) -> None:
    digests = twin(3, **PLATEAU).digests
    for step in range(1, STEPS + 1):
        assert len({digests[(rank, step)][1] for rank in range(3)}) == 1


@pytest.mark.parametrize("how", ["clip", "clip data", "before"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_weights_written_outside_the_optimizer_are_refused_by_name(
    job: Job, kind: str, how: str
) -> None:
    coordinator = job(2, options={"standbys": 0}, JOB_KIND=kind, JOB_TAIL=how, **COMMON)
    ranks = list(coordinator.ranks.values())
    with pytest.raises(Failed):
        coordinator.run(coordinator.finished, 30)
    assert any("changed outside optimizer.step()" in rank.log for rank in ranks)
    assert any("weight" in rank.log for rank in ranks)
    assert all(rank.header is not None and rank.header.get("applied") <= 1 for rank in ranks)


@pytest.mark.parametrize(("kind", "point"), [("ddp", "tail"), ("ddp", "inside"), ("fsdp2", "tail")])
def test_weights_written_inside_the_optimizers_step_go_through_a_failure(
    job: Job, twin: Twin, kind: str, point: str
) -> None:
    settings = {"JOB_KIND": kind, "JOB_TAIL": "hook", **COMMON}
    coordinator = job(3, JOB_KILL=f"1:6:{point}", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)
