"""Planned moves, lost nodes, repeated failures, failures during recovery, agents that restart."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from agent.link import AdoptReady, Blocked, Interrupt, Regrouped, Resume
from agent.protocol import Limits
from agent.transfer.arena import Phase

from .conftest import Twin, assert_identical, story_of
from .harness import Coordinator, Worker

Job = Callable[..., Coordinator]
STEPS = 9
COMMON = {"JOB_STEPS": str(STEPS)}
LONG = {"JOB_STEPS": "24", "YOCO_DIGEST_EVERY": "4"}


@pytest.mark.parametrize(("kind", "rank"), [("ddp", 2), ("fsdp2", 0)])
def test_a_live_rank_is_moved_at_an_agreed_fence(
    job: Job, twin: Twin, kind: str, rank: int
) -> None:
    settings = {"JOB_KIND": kind, **COMMON}
    coordinator = job(3, **settings)
    coordinator.open_gate()
    coordinator.move(rank)
    coordinator.run(coordinator.finished, 60)
    left = [w for w in coordinator.workers if w not in coordinator.ranks.values()]
    coordinator.run(lambda: all(worker.exited for worker in left))
    assert coordinator.moved == [(rank, "live", "none")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("point", ["forward", "voted", "inside", "tail"])
def test_a_lost_node_is_healed_from_a_replica_and_the_buddys_copy(
    job: Job, twin: Twin, point: str
) -> None:
    settings = {"JOB_KIND": "ddp", **COMMON}
    coordinator = job(3, JOB_KILL=f"1:6:{point}", **settings)
    coordinator.open_gate()
    coordinator.custody_lost.add(coordinator.ranks[1].pid)
    coordinator.run(coordinator.finished)
    assert [(rank, name) for rank, name, _finish in coordinator.moved] == [(1, "replica")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_one_process_goes_through_three_recoveries(job: Job, twin: Twin) -> None:
    settings = {"JOB_KIND": "ddp", **COMMON}
    kills = "1:5:forward:0,2:6:inside:1,1:8:tail:2"
    coordinator = job(3, options={"standbys": 3}, JOB_KILL=kills, **settings)
    survivor = coordinator.ranks[0]
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert [rank for rank, _name, _finish in coordinator.moved] == [1, 2, 1]
    assert [c.generation for c in survivor.committed] == [1, 2, 3]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks_die_in_one_step(job: Job, twin: Twin, kind: str) -> None:
    settings = {"JOB_KIND": kind, **COMMON}
    coordinator = job(3, options={"standbys": 2}, JOB_KILL="0:6:forward,2:6:forward", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert sorted(rank for rank, _name, _finish in coordinator.moved) == [0, 2]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_a_standby_that_dies_while_it_adopts_is_followed_by_another(job: Job, twin: Twin) -> None:
    settings = {"JOB_KIND": "ddp", **COMMON}
    coordinator = job(3, options={"standbys": 2}, JOB_KILL="1:6:backward", **settings)
    killed = []

    def kill_first(worker, message) -> None:  # type: ignore[no-untyped-def]
        if isinstance(message, AdoptReady) and not killed:
            killed.append(worker)
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    coordinator.on_message = kill_first
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert len(killed) == 1
    assert coordinator.generation == 2
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_an_interrupt_that_comes_before_the_verdict_of_its_generation_is_not_lost(
    job: Job, twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"JOB_KIND": "ddp", **COMMON}
    limits = Limits(stall_s=2.0, collective_s=20.0, blocked_s=120.0, join_s=120.0)
    options = {"standbys": 2, "limits": limits}
    coordinator = job(3, options=options, JOB_KILL="1:6:backward", **settings)
    send, interrupt = coordinator._send, coordinator.interrupt

    def overtaken(worker: Worker, message: Any, fds: list[int] | None = None) -> None:
        if isinstance(message, Resume) and message.generation == 1:
            send(worker, Interrupt(generation=1))
        send(worker, message, fds)

    def kill_newcomer(worker: Worker, message: Any) -> None:
        if isinstance(message, AdoptReady) and coordinator.generation == 1:
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    monkeypatch.setattr(coordinator, "_send", overtaken)
    monkeypatch.setattr(
        coordinator, "interrupt", lambda: coordinator.generation == 1 or interrupt()
    )
    coordinator.on_message = kill_newcomer
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 40)
    assert coordinator.generation == 2
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_a_survivor_that_dies_in_the_new_generation_is_healed_too(job: Job, twin: Twin) -> None:
    settings = {"JOB_KIND": "ddp", **COMMON}
    coordinator = job(3, options={"standbys": 2}, JOB_KILL="1:6:voted", **settings)
    killed = []

    def kill_survivor(worker, message) -> None:  # type: ignore[no-untyped-def]
        if isinstance(message, Regrouped) and message.rank == 2 and not killed:
            killed.append(worker)
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    coordinator.on_message = kill_survivor
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert len(killed) == 1
    assert sorted({rank for rank, _name, _finish in coordinator.moved}) == [1, 2]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("provisional", [1, 2])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_standby_takes_any_rank_from_any_provisional_one(
    job: Job, twin: Twin, kind: str, provisional: int
) -> None:
    settings = {"JOB_KIND": kind, **COMMON}
    coordinator = job(3, options={"provisional": provisional}, JOB_KILL="0:6:forward", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(0, "custody", "none")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_micro_batches_of_a_torn_step_are_drawn_again(job: Job, twin: Twin, kind: str) -> None:
    settings = {"JOB_KIND": kind, "JOB_MICRO": "3", "JOB_CLIP": "1", **COMMON}
    coordinator = job(3, JOB_KILL="2:6:backward", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert coordinator.moved == [(2, "custody", "none")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_what_the_survivors_report_proves_that_they_went_on(job: Job, twin: Twin) -> None:
    settings = {"JOB_KIND": "ddp", **COMMON}
    unbroken = twin(3, **settings)
    # After the gradients are exchanged, so that every survivor has surely drawn the torn step's batch.
    coordinator = job(3, JOB_KILL="1:6:prepared", **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished)
    for rank, worker in coordinator.ranks.items():
        (report,) = worker.committed
        assert (report.generation, report.previous_step, report.step) == (1, 5, 6)
        assert report.previous_trail_head == unbroken.commits[(rank, 5)][0]
        assert report.trail_head == unbroken.commits[(rank, 6)][0]
        assert report.batch_hash == unbroken.commits[(rank, 6)][2]
        assert report.redone_batch_hash == report.batch_hash
        assert (report.pause_ms is None) == (rank == 1)
        assert report.replica_digest == unbroken.digests[(rank, 6)][1]
    assert len({worker.committed[0].replica_digest for worker in coordinator.ranks.values()}) == 1


def test_a_frozen_rank_is_reported_as_a_stall_and_its_kill_heals_the_job(
    job: Job, twin: Twin
) -> None:
    settings = {"JOB_KIND": "ddp", "JOB_STEPS": "9"}
    coordinator = job(3, **settings)
    stalls: list[Blocked] = []

    def end_the_frozen(worker, message) -> None:  # type: ignore[no-untyped-def]
        if isinstance(message, Blocked) and message.outcome == "stalled" and not stalls:
            stalls.append(message)
            coordinator.kill(1)

    coordinator.on_message = end_the_frozen
    coordinator.run(coordinator.ready)
    # Not between a commit and the line about it: the successor would not write that line again.
    coordinator.run(lambda: (1, 4) in story_of(coordinator).digests)
    coordinator.kill(1, signal.SIGSTOP)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert stalls[0].silent_s >= coordinator.limits.stall_s
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_workers_of_an_agent_that_restarted_hand_everything_over_again(
    job: Job, twin: Twin, kind: str
) -> None:
    settings = {"JOB_KIND": kind, **COMMON}
    coordinator = job(3, JOB_KILL="2:6:forward", **settings)
    coordinator.run(coordinator.ready)
    coordinator.restart_agent()
    assert not coordinator.ready()
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert all(worker.hellos == 2 for worker in coordinator.workers)
    assert coordinator.moved == [(2, "custody", "none")]
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


def test_training_goes_on_while_no_agent_listens(job: Job, twin: Twin) -> None:
    settings = {"JOB_KIND": "ddp", **COMMON}
    coordinator = job(3, **settings)
    coordinator.run(coordinator.ready)
    headers = [worker.header for worker in coordinator.ranks.values()]
    for worker in coordinator.workers:
        coordinator.selector.unregister(worker.link)
        worker.link.close()
    (coordinator.folder / "gate").touch()
    coordinator.run(lambda: all(header.get("phase") == Phase.DONE for header in headers))
    assert_identical(coordinator, twin(3, **settings), 3, STEPS)


@pytest.mark.parametrize(("flip", "source"), [("1:5", "replica"), ("", "live")])
def test_a_bit_that_turned_over_before_a_planned_move_is_not_moved_along(
    job: Job, flip: str, source: str
) -> None:
    coordinator = job(3, JOB_KIND="ddp", JOB_FLIP=flip, **COMMON)
    coordinator.open_gate()
    coordinator.run(lambda: coordinator.step() >= 6)
    coordinator.move(1)
    coordinator.run(coordinator.finished, 60)
    assert [(rank, name) for rank, name, _finish in coordinator.moved] == [(1, source)]
    story = story_of(coordinator)
    assert len({story.digests[(rank, STEPS)][1] for rank in range(3)}) == 1
