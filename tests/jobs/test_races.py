"""Two at once, each on a database connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from jobs import services
from jobs.errors import StepRefused
from jobs.models import AgentEvent, Generation, Incident, Job, JobTransition, Migration, Worker
from jobs.reconcile import reconcile_all, reconcile_job
from jobs.states import JobState, MigrationState, Verdict, WorkerState

from .situations import at
from .world import World, exited

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            barrier.wait(20)
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_two_reconcilers_at_once_write_one_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    from jobs import agent_apis

    world = World(num_nodes=4)
    job = world.trained()
    with monkeypatch.context() as later:
        later.setattr(agent_apis, "_reconcile", lambda job_id: None)
        world.kill(job, 2, at(184))
        for rank in (0, 1):
            world.block(job, rank, at(184))
    results = at_once(*[lambda: reconcile_job(job.pk)] * 4)

    assert True in results
    assert not [result for result in results if isinstance(result, Exception)]
    assert Migration.objects.count() == 1
    assert Generation.objects.filter(job=job).count() == 2


def test_reports_of_all_ranks_at_once_end_in_one_migration_without_the_clock() -> None:
    world = World(num_nodes=4)
    job = world.trained()
    killed = world.rank(job, 2)
    agents = [world.agent_of(world.rank(job, rank)) for rank in range(3)]
    results = at_once(
        lambda: agents[2].report(exited(killed, at(184))),
        lambda: world.block(job, 0, at(184)),
        lambda: world.block(job, 1, at(184)),
    )

    assert not [result for result in results if isinstance(result, Exception)]
    assert Incident.objects.count() == 1
    assert Migration.objects.get().state == MigrationState.MOVING


def test_the_same_batch_twice_at_once_is_stored_once() -> None:
    world = World(num_nodes=4)
    job = world.trained()
    agent = world.agent_of(world.rank(job, 2))
    batch = agent.events(exited(world.rank(job, 2), at(184)))
    results = at_once(lambda: agent.send(batch), lambda: agent.send(batch))

    assert not [result for result in results if isinstance(result, Exception)]
    assert AgentEvent.objects.filter(kind="rank_exited").count() == 1
    assert Incident.objects.count() == 1


def test_of_two_who_step_a_job_one_is_refused() -> None:
    job = World(num_nodes=0).submit(when_full="wait")

    def cancel() -> None:
        row = Job.objects.get(pk=job.pk)
        services.job_step(job=row, to=JobState.CANCELLED, reason="a race")

    results = at_once(cancel, cancel)

    assert sorted(type(result) for result in results if result is not None) == [StepRefused]
    assert JobTransition.objects.filter(job=job).count() == 1


def test_two_jobs_at_once_never_share_a_slot() -> None:
    world = World(num_nodes=4)
    jobs = [world.submit(world_size=2, standbys=0) for _ in range(2)]
    at_once(*(lambda pk=job.pk: reconcile_job(pk) for job in jobs))
    taken = list(
        Worker.objects.exclude(state=WorkerState.EXITED).values_list("node_id", "gpu_index")
    )

    assert len(taken) == len(set(taken)) == 4


def test_how_long_a_kill_takes_until_every_agent_can_have_its_regroup_order() -> None:
    """Printed, never asserted: what is asserted is that the orders are there."""
    world = World(num_nodes=4)
    job = world.trained()
    took: list[float] = []
    for _ in range(3):
        reconcile_all()
        world.launch(job)
        killed = world.rank(job, 2)
        step = job.committed_step
        agents = [world.agent_of(world.rank(job, rank)) for rank in range(3)]
        agents[2].statuses.clear()
        began = time.perf_counter()
        agents[2].report(exited(killed, at(step)))
        at_once(
            lambda: world.block(job, 0, at(step)),  # noqa: B023
            lambda: world.block(job, 1, at(step)),  # noqa: B023
        )
        took.append((time.perf_counter() - began) * 1000)
        assert Migration.objects.latest("pk").state == MigrationState.MOVING
        assert world.heal(job).verdict == Verdict.COVERED
    print(f"kill -> regroup orders written, ms: {[round(ms) for ms in took]}")
