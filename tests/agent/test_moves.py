"""Regroup orders end to end: two agents, tiny workers, state that really travels between them."""

from __future__ import annotations

import os
import signal
from typing import Literal

import pytest

from agent.protocol import (
    Adopt,
    InterruptOrder,
    MigrationFailed,
    PauseOrder,
    RankBlocked,
    RankCommitted,
    RankExited,
    RankJoined,
    Rejoined,
    ReleaseOrder,
    Retire,
    Survive,
    Transferred,
    WorkerStarted,
)

from .moving import Two
from .running import RunningAgent, launch


def test_a_dead_ranks_state_goes_from_custody_to_a_standby_on_another_node(two: Two) -> None:
    job = two.begin("custody")
    dead = job.rank(0, "node-a", "at=7")
    survivor = job.rank(1, "node-b", "at=7")
    standby = job.standby("node-b")
    assert job.kill(dead).custody == "usable"
    assert job.interrupt(1, "node-b").outcome == "unknown"
    serve, fetch = job.stream(0, "custody", "all")
    source = job.regroup("node-a", 7, serve)
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[fetch])
    target = job.regroup("node-b", 7, Survive(rank=1), adopt)
    assert two.plane.wait_result(source).ok
    assert two.plane.wait_result(target).ok
    moved = two.plane.wait_event(Transferred, job_id=job.job)
    assert moved.source_digest == moved.target_digest != ""
    assert (moved.holder, moved.source_node, moved.rank) == ("custody", "node-a", 0)
    assert moved.bytes_moved >= 4096
    assert job.restored(standby) == {
        "storage": 7,
        "uniform": True,
        "blobs": {"small": [7, "small 7 of 0"], "fence": [7, "fence 7 of 0"]},
    }
    for worker_id, rank in ((standby, 0), (survivor, 1)):
        rejoined = two.plane.wait_event(Rejoined, worker_id=worker_id)
        assert (rejoined.rank, rejoined.generation, rejoined.migration_id) == (rank, 2, "m-1")
        committed = two.plane.wait_event(RankCommitted, worker_id=worker_id)
        assert (committed.step, committed.generation, committed.migration_id) == (8, 2, "m-1")


def test_custody_is_let_go_by_release_and_not_before(two: Two) -> None:
    job = two.begin("release")
    dead = job.rank(0, "node-a")
    job.kill(dead)
    assert _held(two.a, dead) == 8
    release = ReleaseOrder(job_id=job.job, attempt=1, generation=2, ranks=[1])
    assert two.plane.wait_result(two.plane.order(release)).ok
    assert _held(two.a, dead) == 8
    release = ReleaseOrder(job_id=job.job, attempt=1, generation=2, ranks=[0])
    assert two.plane.wait_result(two.plane.order(release)).ok
    assert _held(two.a, dead) is None


def test_a_paused_rank_moves_while_it_lives_and_its_old_worker_ends_on_release(two: Two) -> None:
    job = two.begin("live")
    old = job.rank(0, "node-a", "at=4")
    standby = job.standby("node-b")
    pause = PauseOrder(job_id=job.job, attempt=1, generation=1, migration_id="m-1")
    assert two.plane.wait_result(two.plane.order(pause)).ok
    assert two.plane.wait_event(RankBlocked, job_id=job.job).outcome == "paused"
    serve, fetch = job.stream(0, "live", "all")
    job.regroup("node-a", 4, serve, Retire(rank=0, worker_id=old))
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[fetch])
    assert two.plane.wait_result(job.regroup("node-b", 4, adopt)).ok
    assert job.restored(standby)["storage"] == 4
    assert two.plane.bodies(RankExited, worker_id=old) == []
    release = ReleaseOrder(job_id=job.job, attempt=1, generation=2, ranks=[0])
    assert two.plane.wait_result(two.plane.order(release)).ok
    exited = two.plane.wait_event(RankExited, worker_id=old)
    assert (exited.exit_code, exited.custody, exited.generation) == (0, "none", 1)


def test_shared_state_comes_from_a_replica_and_private_state_from_a_buddy(two: Two) -> None:
    job = two.begin("replica")
    job.rank(0, "node-a", "at=7", "meet")  # keeps (fence 7, prepared 8) for rank 1
    standby = job.standby("node-b", "meet")
    job.interrupt(0, "node-a")
    shared, fetch_shared = job.stream(1, "replica", "shared", source_rank=0)
    private, fetch_private = job.stream(1, "buddy", "private", source_rank=0)
    source = job.regroup("node-a", 7, Survive(rank=0), shared, private)
    fetches = [fetch_shared, fetch_private]
    adopt = Adopt(worker_id=standby, rank=1, finish="none", fetches=fetches)
    assert two.plane.wait_result(job.regroup("node-b", 7, adopt)).ok
    assert two.plane.wait_result(source).ok
    assert job.restored(standby)["blobs"] == {
        "small": [7, "small 7 of 0"],
        "fence": [7, "fence 7 of 1"],
    }
    two.plane.wait(lambda: len(two.plane.bodies(Transferred, job_id=job.job)) == 2, "two streams")


def test_a_buddys_copy_of_the_committed_step_has_both_halves(two: Two) -> None:
    job = two.begin("tail-of-buddy")
    job.rank(0, "node-a", "at=7")  # keeps (fence 7, prepared 8) for rank 1, which had applied 8
    standby = job.standby("node-b")
    private, fetch = job.stream(1, "buddy", "private", source_rank=0)
    job.regroup("node-a", 8, private)
    adopt = Adopt(worker_id=standby, rank=1, finish="tail", fetches=[fetch])
    assert two.plane.wait_result(job.regroup("node-b", 8, adopt)).ok
    assert job.restored(standby)["blobs"] == {
        "fence": [7, "fence 7 of 1"],
        "prepared": [8, "prepared 8 of 1"],
    }


@pytest.mark.parametrize(
    ("resume_at", "finish", "blobs"),
    [
        (7, "none", {"small": [7, "small 7 of 1"], "fence": [7, "fence 7 of 1"]}),
        (
            8,
            "apply",
            {
                "small": [7, "small 7 of 1"],
                "fence": [7, "fence 7 of 1"],
                "prepared": [8, "prepared 8 of 1"],
            },
        ),
    ],
)
def test_a_lost_nodes_rank_is_given_whole_by_its_buddy(
    two: Two, resume_at: int, finish: Literal["none", "apply"], blobs: dict[str, list[object]]
) -> None:
    job = two.begin(f"whole-{finish}")
    job.rank(0, "node-a", "at=7", "whole")  # keeps the arena of step 7 and (fence 7, prepared 8)
    standby = job.standby("node-b")
    position = job.interrupt(0, "node-a").position
    assert (position.holds, position.shards) == ({"1": [8]}, {"1": [7]})
    serve, fetch = job.stream(1, "buddy", "all", source_rank=0)
    job.regroup("node-a", resume_at, serve)
    adopt = Adopt(worker_id=standby, rank=1, finish=finish, fetches=[fetch])
    assert two.plane.wait_result(job.regroup("node-b", resume_at, adopt)).ok
    assert job.restored(standby) == {"storage": 7, "uniform": True, "blobs": blobs}


def test_a_buddy_that_keeps_no_whole_copy_says_so(two: Two) -> None:
    job = two.begin("not-whole")
    job.rank(0, "node-a", "at=7", "whole")
    serve, _fetch = job.stream(1, "buddy", "all", source_rank=0)
    result = two.plane.wait_result(job.regroup("node-a", 9, serve))
    assert (result.ok, result.code) == (False, "source_missing")


def test_a_rank_that_died_in_its_tail_is_given_with_what_finishes_the_step(two: Two) -> None:
    job = two.begin("tail")
    dead = job.rank(0, "node-a", "at=7", "tail")
    standby = job.standby("node-b")
    assert job.kill(dead).position.fence == 6
    serve, fetch = job.stream(0, "custody", "all")
    job.regroup("node-a", 7, serve)
    adopt = Adopt(worker_id=standby, rank=0, finish="tail", fetches=[fetch])
    assert two.plane.wait_result(job.regroup("node-b", 7, adopt)).ok
    assert job.restored(standby)["blobs"] == {
        "small": [7, "small 7 of 0"],
        "fence": [6, "fence before"],
        "prepared": [7, "prepared 7 of 0"],
    }


def test_a_rank_that_died_inside_its_optimizer_gives_what_its_replica_cannot(two: Two) -> None:
    """Its arena is torn, its slots are whole: the replica gives the one, its custody the other."""
    job = two.begin("torn-private")
    job.rank(0, "node-a", "at=8")
    dead = job.rank(1, "node-a", "at=7", "torn")
    standby = job.standby("node-b")
    position = job.kill(dead).position
    assert position is not None
    assert (position.applied, position.applying) == (7, 8)
    shared, fetch_shared = job.stream(1, "replica", "shared", source_rank=0)
    private, fetch_private = job.stream(1, "custody", "private")
    source = job.regroup("node-a", 8, shared, private)
    fetches = [fetch_shared, fetch_private]
    adopt = Adopt(worker_id=standby, rank=1, finish="tail", fetches=fetches)
    target = job.regroup("node-b", 8, adopt)
    assert two.plane.wait_result(source).code == ""
    assert two.plane.wait_result(target).ok
    assert job.restored(standby)["blobs"] == {
        "small": [8, "small 8 of 0"],
        "fence": [7, "fence 7 of 1"],
        "prepared": [8, "prepared 8 of 1"],
    }


@pytest.mark.parametrize(
    ("words", "resume_at", "what"),
    [(["at=7", "torn"], 7, "torn"), (["at=7"], 9, "another step"), (["quiet"], 7, "no arena")],
)
def test_custody_that_is_not_whole_at_the_step_is_refused_to_both_ends(
    two: Two, words: list[str], resume_at: int, what: str
) -> None:
    job = two.begin(f"refused-{what.replace(' ', '-')}")
    worker_id = f"{job.job}-rank0"
    order = launch("worker.py", *words, job_id=job.job, worker_id=worker_id, rank=0)
    two.plane.order(order)
    two.plane.wait_event(RankJoined, worker_id=worker_id)
    job.kill(worker_id)
    standby = job.standby("node-b")
    serve, fetch = job.stream(0, "custody", "all")
    source = job.regroup("node-a", resume_at, serve)
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[fetch])
    target = job.regroup("node-b", resume_at, adopt)
    assert two.plane.wait_result(source).code == "source_missing"
    result = two.plane.wait_result(target)
    failed = two.plane.wait_event(MigrationFailed, job_id=job.job)
    assert failed.code == result.code == "source_unavailable"
    assert two.plane.bodies(Rejoined, job_id=job.job) == []


def test_a_wrong_stream_secret_moves_nothing(two: Two) -> None:
    job = two.begin("secret")
    dead = job.rank(0, "node-a")
    standby = job.standby("node-b")
    job.kill(dead)
    serve, fetch = job.stream(0, "custody", "all", stream_secret="another-" * 4)
    job.regroup("node-a", 7, serve)
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[fetch])
    result = two.plane.wait_result(job.regroup("node-b", 7, adopt))
    assert result.code == "secret_refused"
    assert two.plane.wait_event(MigrationFailed, job_id=job.job).code == "secret_refused"
    assert two.plane.bodies(Transferred, job_id=job.job) == []


def test_a_standby_that_dies_while_adopting_is_told_of_at_once(two: Two) -> None:
    job = two.begin("dying")
    standby = job.standby("node-b")
    adopt = Adopt(worker_id=standby, rank=0, finish="none", fetches=[])
    os.kill(two.plane.wait_event(WorkerStarted, worker_id=standby).pid, signal.SIGSTOP)
    target = job.regroup("node-b", 7, adopt)
    two.plane.wait(lambda: job.rank_of(standby) == 0, "the standby takes the rank")
    exited = job.kill(standby)
    assert (exited.rank, exited.generation) == (0, 2)
    assert two.plane.wait_result(target).code == "standby_silent"
    assert two.plane.wait_event(MigrationFailed, job_id=job.job).code == "standby_silent"


def test_an_order_of_an_old_generation_changes_nothing(two: Two) -> None:
    job = two.begin("old")
    worker = job.rank(0, "node-a", "at=7")
    job.interrupt(0, "node-a")
    assert two.plane.wait_result(job.regroup("node-a", 7, Survive(rank=0))).ok
    two.plane.wait_event(RankCommitted, worker_id=worker, generation=2)
    late = InterruptOrder(job_id=job.job, attempt=1, generation=1)
    assert two.plane.wait_result(two.plane.order(late)).code == "old_generation"
    again = job.regroup("node-a", 7, Survive(rank=0), generation=1)
    assert two.plane.wait_result(again).code == "old_generation"
    stale = launch("worker.py", job_id=job.job, worker_id=f"{job.job}-late", rank=0)
    assert two.plane.wait_result(two.plane.order(stale)).code == "old_generation"
    assert len(two.plane.bodies(RankBlocked, job_id=job.job)) == 1
    assert len(two.plane.bodies(Rejoined, job_id=job.job)) == 1
    assert two.plane.bodies(WorkerStarted, worker_id=f"{job.job}-late") == []


def _held(agent: RunningAgent, worker_id: str) -> int | None:
    worker = agent.worker(worker_id)
    return None if worker is None else worker.held_descriptors
