"""The same step that fails in the same way again is the job's own code, however its process ended."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agent import protocol
from jobs import services
from jobs.errors import JobNotEnded
from jobs.models import Incident, Job, Migration, Worker
from jobs.reconcile import reconcile_all
from jobs.states import CauseClass, JobState, Verdict

from .situations import at
from .world import OPERATOR, Agent, World, exited, who

pytestmark = pytest.mark.django_db


def more(world: World, count: int) -> World:
    for index in range(count):
        extra = world.add(20 + index)
        world.by_node[extra.node.pk] = extra
        world.agents.append(extra)
    return world


def moved(world: World, job: Job) -> None:
    """Rank 2 goes to its standby, and all stand in the new group: nobody has committed there yet."""
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.transfer(job, world.regroup(job))
    migration = Migration.objects.filter(job=job).latest("pk")
    now = time.time()
    for worker in world.ranks(job):
        assert worker.rank is not None
        world.agent_of(worker).report(
            protocol.Rejoined(
                **who(worker), rank=worker.rank, migration_id=str(migration.pk),
                began_at=now, ended_at=now,
            )
        )  # fmt: skip


def ends(world: World, job: Job, **how: Any) -> Worker:
    worker = world.kill(job, 2, at(184), **how)
    job.refresh_from_db()
    return worker


@pytest.mark.parametrize(
    ("signal", "name"),
    [pytest.param(11, "SIGSEGV", id="its own fault"), pytest.param(9, "SIGKILL", id="killed")],
)
def test_the_same_signal_at_the_same_step_on_another_node_is_user_code(
    world: World, signal: int, name: str
) -> None:
    job = world.trained()
    ends(world, job, signal=signal)
    moved(world, job)
    ends(world, job, signal=signal, detail="last words")
    incident = Incident.objects.get()

    assert job.state == JobState.FAILED
    assert job.end_reason == (
        f"user code: rank 2 was ended by {name} after step 184, on two nodes: last words"
    )
    assert (incident.verdict, incident.cause_class) == (Verdict.EXCLUDED, CauseClass.USER_CODE)
    assert incident.evidence["cause"]["row"] == "same_end"
    assert Worker.objects.filter(job=job, holds_state=True).exists()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"signal": 11}, {"signal": 9}, id="another signal"),
        pytest.param(
            {"signal": None, "exit_code": 1}, {"signal": None, "exit_code": 2}, id="another code"
        ),
        pytest.param(
            {"signal": None, "exit_code": 1, "exception": "ValueError: bad batch"},
            {"signal": None, "exit_code": 1, "exception": "KeyError: 'text'"},
            id="another exception",
        ),
        pytest.param(
            {"signal": None, "exit_code": 1, "exception": "ValueError: bad batch"},
            {"signal": None, "exit_code": 1, "exception": "ValueError: worse batch"},
            id="other words of it",
        ),
        pytest.param(
            {"signal": None, "exit_code": 1, "exception": "NothingHeard: no verdict within 1800 s"},
            {"signal": None, "exit_code": 1, "exception": "NothingHeard: no verdict within 1800 s"},
            id="the engine's own, told by nobody how to go on",
        ),
        pytest.param(
            {"signal": None, "exit_code": 1, "exception": "ValueError: bad batch"},
            {"signal": None, "exit_code": 1},
            id="nobody heard what it raised",
        ),
        pytest.param(
            {"signal": 9},
            {"signal": 9, "detail": "hung: it did not stop within 60 s of being interrupted"},
            id="killed by its own agent",
        ),
    ],
)
def test_another_end_is_another_failure(
    world: World, first: dict[str, Any], second: dict[str, Any]
) -> None:
    job = world.trained()
    ends(world, job, **first)
    moved(world, job)
    ends(world, job, **second)

    assert job.state == JobState.RECOVERING


def test_ranks_killed_at_once_say_nothing_about_their_code(world: World) -> None:
    job = world.trained(standbys=1)
    ends(world, job)
    world.kill(job, 1, at(184))
    world.block(job, 0, at(184))
    job.refresh_from_db()

    assert job.state == JobState.RECOVERING


def test_a_target_killed_before_it_ran_says_nothing_about_its_code(world: World) -> None:
    job = world.trained()
    ends(world, job)
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.transfer(job, world.regroup(job))
    ends(world, job)

    assert job.state == JobState.RECOVERING


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param({"signal": 11}, "was ended by SIGSEGV", id="signal"),
        pytest.param(
            {"signal": None, "exit_code": 1}, "ended by itself with exit code 1", id="exit code"
        ),
    ],
)
def test_on_one_node_the_third_time_is_user_code(how: dict[str, Any], words: str) -> None:
    world = World(num_nodes=1, gpus=5)
    job = world.trained(standbys=2)
    for _ in range(2):
        ends(world, job, **how)
        assert job.state == JobState.RECOVERING
        moved(world, job)
    ends(world, job, **how)

    assert job.state == JobState.FAILED
    assert job.end_reason.startswith(f"user code: rank 2 {words} after step 184, 3 times")


RAISED = {"signal": None, "exit_code": 1, "exception": "ValueError: bad <Batch at 0x7f01>"}


def fail_twice(world: World) -> Job:
    """The same exception at the same step on two nodes; all is told, nothing more is ordered."""
    job = world.trained(standbys=2)
    ends(world, job, **RAISED)
    moved(world, job)
    again = {**RAISED, "exception": "ValueError: bad <Batch at 0x7f99>"}
    ends(world, job, **again, detail="last words")
    return job


def test_the_same_exception_at_the_same_step_on_another_node_takes_no_third_spare(
    world: World,
) -> None:
    more(world, 2)
    job = fail_twice(world)

    assert job.state == JobState.FAILED
    assert job.end_reason == (
        "user code: rank 2 raised ValueError: bad <Batch at 0x7f99> after step 184, on two nodes: "
        "last words"
    )
    assert Migration.objects.filter(job=job).count() == 1
    assert sum(len(agent.take(protocol.RegroupOrder)) for agent in world.agents) == 0


def stop_orders(world: World) -> list[tuple[Agent, protocol.StopOrder]]:
    return [(agent, body) for agent in world.agents for body in agent.take(protocol.StopOrder)]


def test_what_agents_hold_of_every_rank_stays_until_a_person_says_so(world: World) -> None:
    job = fail_twice(world)
    for agent, body in stop_orders(world):
        for worker in Worker.objects.filter(pk__in=body.worker_ids, rank__isnull=False):
            assert body.keep_state
            agent.report(exited(worker, at(184), detail="ended by order, its state kept"))
    for _ in range(2):
        reconcile_all()
        world.beat_all()
    held = Worker.objects.filter(job=job, generation=job.generation, holds_state=True)

    assert sorted(held.values_list("rank", flat=True)) == [0, 1, 2]
    assert {worker.custody for worker in held} == {"usable"}
    assert stop_orders(world) == []
    assert sum(len(agent.take(protocol.ReleaseOrder)) for agent in world.agents) == 0

    ranks = services.job_state_release(viewer=OPERATOR, job_id=job.pk, reason="looked at it")
    assert ranks == [0, 1, 2]
    released = [body for _agent, body in stop_orders(world)]
    assert not any(body.keep_state for body in released)
    assert not Worker.objects.filter(job=job, holds_state=True).exists()


def test_the_state_of_a_job_that_runs_is_not_for_release(world: World) -> None:
    job = world.trained()

    with pytest.raises(JobNotEnded):
        services.job_state_release(viewer=OPERATOR, job_id=job.pk, reason="too early")
