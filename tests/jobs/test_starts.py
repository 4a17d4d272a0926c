"""A job that ends before its first step: done, at fault itself, or worth another try."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs.models import Incident, Job
from jobs.reconcile import reconcile_all
from jobs.states import JobState, Verdict

from .world import World, exited, who

pytestmark = pytest.mark.django_db


def launched(world: World, **changed: object) -> Job:
    job = world.submit(standbys=0, **changed)
    reconcile_all()
    started(world, job)
    return job


def started(world: World, job: Job) -> None:
    for worker in world.ranks(job):
        world.agent_of(worker).report(
            protocol.WorkerStarted(**who(worker), rank=worker.rank, pid=1)
        )


def ends(world: World, job: Job, rank: int, exit_code: int) -> str:
    """End one rank that has never joined; the name of its node."""
    worker = world.rank(job, rank)
    world.agent_of(worker).report(
        exited(worker, None, exit_code=exit_code, signal=None, detail="last words")
    )
    job.refresh_from_db()
    return str(worker.node.name)


def test_a_script_that_ends_well_before_anybody_asked_it_to_join_has_run_once(
    world: World,
) -> None:
    job = launched(world, world_size=1)
    ends(world, job, 0, 0)

    assert (job.state, job.attempt) == (JobState.FINISHED, 1)
    assert job.end_reason == "the script ended; it had never joined"
    assert Incident.objects.get().verdict == Verdict.UNSUPPORTED


def test_ranks_that_never_join_may_end_one_after_the_other(world: World) -> None:
    job = launched(world, world_size=2)
    ends(world, job, 1, 0)
    assert (job.state, job.attempt) == (JobState.STARTING, 1)
    ends(world, job, 0, 0)

    assert (job.state, job.attempt) == (JobState.FINISHED, 1)


def test_one_of_them_that_fails_is_a_loss_like_any_other(world: World) -> None:
    job = launched(world, world_size=2)
    ends(world, job, 1, 0)
    ends(world, job, 0, 1)

    assert job.attempt == 2


def test_the_same_end_on_two_nodes_before_the_first_step_is_user_code(world: World) -> None:
    job = launched(world, world_size=1)
    first = ends(world, job, 0, 1)
    reconcile_all()
    started(world, job)
    second = ends(world, job, 0, 1)

    assert first != second
    assert job.state == JobState.FAILED
    assert "as it did on another node" in job.end_reason


def test_on_the_only_node_it_takes_three_and_no_other_node_is_named() -> None:
    world = World(num_nodes=1)
    job = launched(world, world_size=1)
    for attempt in (2, 3):
        ends(world, job, 0, 1)
        assert job.attempt == attempt
        reconcile_all()
        started(world, job)
    ends(world, job, 0, 1)

    assert job.state == JobState.FAILED
    assert job.end_reason.startswith("user code: rank 0 ended by itself with exit code 1")
    assert "another node" not in job.end_reason
    assert "3 times" in job.end_reason
