"""Gradient accumulation: ranks lost or moved inside a step, under both settings of ``accumulation``."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from agent.link import AdoptReady
from agent.training.trail import Trail
from agent.training.watch import mark_backward

from .conftest import Twin, assert_identical, story_of
from .harness import Coordinator, Worker

Job = Callable[..., Coordinator]
STEPS = 4
COMMON = {"JOB_STEPS": str(STEPS), "JOB_GATE_STEP": "2", "JOB_MICRO": "8", "JOB_CLIP": "1"}
DDP = {"JOB_KIND": "ddp", **COMMON}
NO_SYNC = {"JOB_SYNC_LAST": "1", **DDP}
FSDP2 = {"JOB_KIND": "fsdp2", "JOB_SYNC_LAST": "1", **COMMON}
KEEP = {"accumulation": "keep"}


def redone(coordinator: Coordinator) -> dict[int, int | None]:
    """How many micro-batches each rank says it has computed again."""
    return {
        rank: worker.committed[0].redone_micro_batches for rank, worker in coordinator.ranks.items()
    }


def all_have_begun(coordinator: Coordinator, step: int, micro: int) -> bool:
    files = [coordinator.folder / f"gate.begun-{step}-{micro}-{rank}" for rank in range(3)]
    return all(file.exists() for file in files)


# Without an exchange of gradients nothing holds the others back: they work on the last micro-batch.
REDO = [
    (DDP, "forward@7", {0: 7, 1: 7, 2: 7}),
    (NO_SYNC, "forward@7~8", {0: 8, 1: 7, 2: 8}),
    (FSDP2, "forward@7", {0: 7, 1: 7, 2: 7}),
]


@pytest.mark.parametrize(("settings", "point", "again"), REDO, ids=["ddp", "no_sync", "fsdp2"])
def test_under_redo_a_rank_lost_in_micro_batch_7_of_8_makes_all_compute_the_step_again(
    job: Job, twin: Twin, settings: dict[str, str], point: str, again: dict[int, int]
) -> None:
    coordinator = job(3, JOB_KILL=f"1:3:{point}", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, "custody", "none")]
    assert (coordinator.resume_at, coordinator.resume_micro) == (2, 0)
    assert redone(coordinator) == again
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("settings", [DDP, NO_SYNC, FSDP2], ids=["ddp", "no_sync", "fsdp2"])
def test_under_keep_a_rank_lost_in_micro_batch_7_of_8_costs_that_one(
    job: Job, twin: Twin, settings: dict[str, str]
) -> None:
    coordinator = job(3, options=KEEP, JOB_KILL="1:3:forward@7", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, "custody", "none")]
    assert (coordinator.resume_at, coordinator.resume_micro) == (2, 6)
    assert redone(coordinator) == {0: 1, 1: 1, 2: 1}
    costs = coordinator.ranks[0].costs[0]
    assert costs["micro_batch_bytes"] > 0
    assert costs.keys() >= {"micro_batch_store_ms", "micro_batch_agree_ms"}
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize(("ahead", "point"), [("7", "forward@8"), ("1", "forward@7")])
def test_under_keep_a_script_that_draws_ahead_computes_the_step_again(
    job: Job, twin: Twin, ahead: str, point: str
) -> None:
    settings = {"JOB_AHEAD": ahead, **NO_SYNC}
    coordinator = job(3, options=KEEP, JOB_KILL=f"1:3:{point}", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(1, "custody", "none")]
    assert (coordinator.resume_at, coordinator.resume_micro) == (2, 0)
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)
    assert all("drawn ahead" in worker.log for worker in coordinator.ranks.values())


def test_under_keep_a_backward_from_several_roots_costs_one_micro_batch_too(
    job: Job, twin: Twin
) -> None:
    settings = {"JOB_ROOTS": "1", **NO_SYNC}
    coordinator = job(3, options=KEEP, JOB_KILL="1:3:forward@7", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert (coordinator.resume_at, coordinator.resume_micro) == (2, 6)
    assert redone(coordinator) == {0: 1, 1: 1, 2: 1}
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)
    assert not any("drawn ahead" in worker.log for worker in coordinator.ranks.values())


def test_every_pass_of_backward_counts_once_and_travels_with_what_is_kept() -> None:
    trail, there = Trail(), Trail()
    mark_backward(None, trail)
    weight = torch.ones(2, requires_grad=True)
    weight.sum().backward()
    torch.autograd.backward([weight.sum(), weight.prod()])
    (weight * 2).backward(torch.ones(2))
    assert trail.num_backwards == 3
    # Reentrant: its backward computes the forward again and calls backward from within.
    checkpoint(torch.exp, weight, use_reentrant=True).sum().backward()
    assert trail.num_backwards == 4
    there.take_pending(trail.pending())
    assert there.num_backwards == 4
    there.commit(1)
    assert there.num_backwards == 0


def test_ranks_that_stand_at_different_micro_batches_go_on_after_the_last_common_one(
    job: Job, twin: Twin
) -> None:
    coordinator = job(3, options=KEEP, JOB_KILL="1:3:unkept@7", **NO_SYNC)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.kept == {0: {6, 7}, 1: {5, 6}, 2: {6, 7}}
    assert coordinator.resume_micro == 6
    assert redone(coordinator) == {0: 1, 1: 1, 2: 1}
    assert_identical(coordinator, twin(3, **NO_SYNC), 3, STEPS)


def test_without_the_kept_gradients_the_comparison_fails(job: Job, twin: Twin) -> None:
    coordinator = job(3, options=KEEP, JOB_KILL="1:3:forward@7", JOB_FORGOTTEN="1", **NO_SYNC)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.resume_micro == 6
    unbroken, story = twin(3, **NO_SYNC), story_of(coordinator)
    differs = {key for key, digest in unbroken.digests.items() if story.digests[key] != digest}
    assert differs == {(rank, step) for rank in range(3) for step in (3, 4)}


@pytest.mark.parametrize("settings", [NO_SYNC, FSDP2], ids=["no_sync", "fsdp2"])
def test_under_keep_a_planned_move_is_made_in_the_middle_of_a_step(
    job: Job, twin: Twin, settings: dict[str, str]
) -> None:
    coordinator = job(3, options=KEEP, JOB_PAUSED_IN="3:4", **settings)
    coordinator.open_gate()
    coordinator.run(lambda: all_have_begun(coordinator, 3, 4))
    coordinator.move(2)
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(2, "live", "none")]
    assert (coordinator.resume_at, coordinator.resume_micro) == (2, 4)
    assert redone(coordinator) == {0: 0, 1: 0, 2: 0}
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_under_redo_a_planned_move_waits_for_the_fence_and_computes_nothing_again(
    job: Job, twin: Twin
) -> None:
    coordinator = job(3, JOB_PAUSED_IN="3:4", **NO_SYNC)
    coordinator.open_gate()
    coordinator.run(lambda: all_have_begun(coordinator, 3, 4))
    coordinator.move(2)
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(2, "live", "none")]
    assert (coordinator.resume_at, coordinator.resume_micro) == (3, 0)
    assert redone(coordinator) == {0: 0, 1: 0, 2: 0}
    assert_identical(coordinator, twin(3, **NO_SYNC), 3, STEPS)


# point, who computes how many again: inside the optimizer only the newcomer runs anything once more
@pytest.mark.parametrize(
    ("settings", "point", "finish"),
    [(NO_SYNC, "inside", "tail"), (NO_SYNC, "tail", "tail"), (FSDP2, "inside", "apply")],
    ids=["ddp inside", "ddp tail", "fsdp2 inside"],
)
def test_under_keep_a_step_lost_in_its_end_is_finished_from_its_last_kept_micro_batch(
    job: Job, twin: Twin, settings: dict[str, str], point: str, finish: str
) -> None:
    coordinator = job(3, options=KEEP, JOB_KILL=f"1:3:{point}", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert [(rank, how) for rank, _name, how in coordinator.moved] == [(1, finish)]
    assert coordinator.resume_at == 3
    assert redone(coordinator)[1] == 1
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_a_node_that_is_lost_while_the_others_stand_at_a_micro_batch_sends_them_to_the_fence(
    job: Job, twin: Twin
) -> None:
    options = {"standbys": 2, **KEEP}
    coordinator = job(3, options=options, JOB_KILL="1:3:forward@7", **NO_SYNC)
    first, tried = coordinator.ranks[1], []

    def lose_the_node(worker: Worker, message: Any) -> None:
        if isinstance(message, AdoptReady) and not tried:
            tried.append(coordinator.resume_micro)
            coordinator.custody_lost.add(first.pid)
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    coordinator.on_message = lose_the_node
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert (tried, coordinator.resume_micro) == ([6], 0)
    assert redone(coordinator) == {0: 7, 1: None, 2: 7}
    assert_identical(coordinator, twin(3, **NO_SYNC), 3, STEPS)


def test_two_failures_in_one_step_are_gone_through_under_keep(job: Job, twin: Twin) -> None:
    options = {"standbys": 2, **KEEP}
    kills = "1:3:forward@5:0,2:3:forward@7:1"
    coordinator = job(3, options=options, JOB_KILL=kills, **NO_SYNC)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert [rank for rank, _name, _finish in coordinator.moved] == [1, 2]
    assert (coordinator.generation, coordinator.resume_micro) == (2, 6)
    assert redone(coordinator) == {0: 2, 1: 2, 2: 1}
    assert_identical(coordinator, twin(3, **NO_SYNC), 3, STEPS)


def test_a_lost_node_takes_its_kept_micro_batches_along_and_the_step_is_computed_again(
    job: Job, twin: Twin
) -> None:
    coordinator = job(3, options=KEEP, JOB_KILL="1:3:forward@7", **NO_SYNC)
    coordinator.open_gate()
    coordinator.custody_lost.add(coordinator.ranks[1].pid)
    coordinator.run(coordinator.finished, 60)
    assert [(rank, name) for rank, name, _finish in coordinator.moved] == [(1, "replica")]
    assert coordinator.resume_micro == 0
    assert redone(coordinator) == {0: 7, 1: None, 2: 7}
    assert_identical(coordinator, twin(3, **NO_SYNC), 3, STEPS)


def test_where_micro_batches_cannot_be_kept_they_are_computed_again_and_the_report_says_why(
    job: Job, twin: Twin
) -> None:
    settings = {"JOB_UNUSED": "1", **NO_SYNC}
    coordinator = job(3, options=KEEP, JOB_KILL="1:3:forward@7~8", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    joined = coordinator.ranks[0].joined
    assert joined is not None and joined.inventory.accumulation.startswith("redo, because")
    assert "find_unused_parameters" in joined.inventory.accumulation
    assert redone(coordinator) == {0: 8, 1: 7, 2: 8}
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)
