"""Orders that a newer order or an interrupt overtakes while they are followed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from agent.protocol import (
    Adopt,
    InterruptOrder,
    MigrationFailed,
    RankBlocked,
    Rejoined,
    StopOrder,
    Survive,
    Transferred,
    WorkerStarted,
)

from .moving import Two


def test_a_newer_regroup_supersedes_one_that_waits(two: Two) -> None:
    job = two.begin("newer")
    job.rank(0, "node-a", "at=7")
    waiting = job.regroup("node-a", 7, Survive(rank=0))  # the rank was never interrupted
    two.plane.wait(lambda: two.plane.orders[waiting][2], "the order is out")
    newer = job.regroup("node-a", 7, Survive(rank=0), generation=3)
    assert two.plane.wait_result(waiting).code == "superseded"
    stop = StopOrder(job_id=job.job, attempt=1, worker_ids=[], reason="enough")
    two.plane.order(stop)
    assert two.plane.wait_result(newer).code == "superseded"


@pytest.mark.parametrize("stage", ["shaping", "filling"])
def test_an_interrupt_ends_an_adoption_that_has_not_come_to_restoring(two: Two, stage: str) -> None:
    job = two.begin(f"interrupted-{stage}")
    standby = job.standby("node-b")
    if stage == "shaping":
        os.kill(two.plane.wait_event(WorkerStarted, worker_id=standby).pid, signal.SIGSTOP)
    _serve, fetch = job.stream(0, "custody", "all")  # which nobody offers
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[fetch])
    target = job.regroup("node-b", 7, adopt)
    two.plane.wait(lambda: job.rank_of(standby) == 0, "the standby takes the rank")
    began = time.monotonic()
    interrupt = InterruptOrder(job_id=job.job, attempt=1, generation=2)
    assert two.plane.wait_result(two.plane.order(interrupt, node="node-b")).ok
    assert two.plane.wait_result(target).code == "interrupted"
    assert time.monotonic() - began < 3.0  # the order would have waited for eight seconds
    assert two.plane.wait_event(MigrationFailed, job_id=job.job).code == "interrupted"
    assert job.rank_of(standby) is None


def test_a_newcomer_that_was_restored_and_stopped_is_its_rank_to_the_next_order(two: Two) -> None:
    job = two.begin("restored-then-stopped")
    job.kill(job.rank(0, "node-a", "at=7"))
    standby = job.standby("node-b", "stay")
    serve, fetch = job.stream(0, "custody", "all")
    job.regroup("node-a", 7, serve)
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[fetch])
    overtaken = job.regroup("node-b", 7, adopt)
    two.plane.wait_event(Transferred, worker_id=standby)
    two.plane.wait(lambda: job.words("restored", standby), "restored")
    interrupt = InterruptOrder(job_id=job.job, attempt=1, generation=2)
    assert two.plane.wait_result(two.plane.order(interrupt, node="node-b")).ok
    blocked = two.plane.wait_event(RankBlocked, worker_id=standby)
    assert (blocked.rank, blocked.generation) == (0, 2)
    newer = job.regroup("node-b", 7, Survive(rank=0), generation=3)
    assert two.plane.wait_result(newer).code == ""
    assert two.plane.wait_result(overtaken).code == "superseded"
    rejoined = two.plane.wait_event(Rejoined, worker_id=standby)
    assert (rejoined.rank, rejoined.generation) == (0, 3)
