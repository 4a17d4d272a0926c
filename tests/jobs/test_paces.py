"""What ranks report of their own time becomes a finding on the slow one's node, shown like any."""

from __future__ import annotations

import itertools

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent import protocol
from jobs.models import AgentEvent, Generation, Job, Worker
from jobs.reconcile import reconcile_all
from jobs.reconcile.pacing import compare_paces
from jobs.reconcile.view import view_of
from jobs.services import job_cancel
from nodes.models import Finding
from yoco_platform.core import clock

from .situations import at
from .world import OPERATOR, World, who

pytestmark = pytest.mark.django_db


_steps = itertools.count(20)


def report(world: World, job: Job, *own_ms: float) -> None:
    """Every rank reports once, rank 0 first, and a pass looks at it."""
    step = next(_steps)
    for rank, worker in enumerate(world.ranks(job)):
        world.agent_of(worker).report(costs(worker, step, own_ms[rank]))
    reconcile_all()


def costs(worker: Worker, step: int, own_ms: float) -> protocol.RankCosts:
    told = {"vote_ms": 1.0, "own_ms": own_ms}
    return protocol.RankCosts(**who(worker), rank=worker.rank, step=step, costs=told)  # type: ignore[arg-type]


def open_now() -> list[tuple[int, str]]:
    return [(f.node_id, f.entity) for f in Finding.objects.filter(cleared_at__isnull=True)]


def test_a_rank_that_is_slow_thrice_is_found_on_its_node(world: World) -> None:
    job = world.trained()
    report(world, job, 100.0, 102.0, 150.0)
    report(world, job, 100.0, 102.0, 150.0)
    assert open_now() == []
    report(world, job, 100.0, 102.0, 150.0)

    assert open_now() == [(world.rank(job, 2).node_id, f"job {job.pk}, rank 2")]


def test_ranks_that_all_take_long_are_not_slow(world: World) -> None:
    job = world.trained()
    for _ in range(5):
        report(world, job, 900.0, 910.0, 920.0)
    assert open_now() == []


def test_reports_of_an_earlier_membership_do_not_count(world: World) -> None:
    job = world.trained()
    report(world, job, 100.0, 102.0, 150.0)
    report(world, job, 100.0, 102.0, 150.0)
    world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.heal(job)
    report(world, job, 100.0, 102.0, 150.0)
    report(world, job, 100.0, 102.0, 150.0)
    assert open_now() == []


def test_the_end_of_the_job_clears_it(world: World) -> None:
    job = world.trained()
    for _ in range(3):
        report(world, job, 100.0, 102.0, 150.0)
    assert len(open_now()) == 1
    job_cancel(viewer=OPERATOR, job_id=job.pk, reason="enough")
    reconcile_all()

    assert open_now() == []
    assert Finding.objects.get().evidence[-1] == "the job is cancelled"


def test_a_finding_counts_reports_and_not_passes(world: World) -> None:
    job = world.trained()
    for _ in range(4):
        report(world, job, 100.0, 102.0, 150.0)
    for _ in range(5):
        reconcile_all()
    assert Finding.objects.get().count == 2


def test_costs_that_are_taken_leave_no_event_and_the_last_reports_of_each_rank(
    world: World,
) -> None:
    job = world.trained()
    before = AgentEvent.objects.count()
    for own_ms in (101.0, 102.0, 103.0, 104.0, 105.0):
        report(world, job, own_ms, own_ms + 10.0, own_ms + 20.0)
    assert AgentEvent.objects.count() == before
    for worker, more in zip(world.ranks(job), (0.0, 10.0, 20.0), strict=True):
        assert [ms for *_, ms in worker.own_ms] == [105.0 + more, 104.0 + more, 103.0 + more]

    job_cancel(viewer=OPERATOR, job_id=job.pk, reason="enough")
    worker = world.rank(job, 1)
    world.agent_of(worker).report(costs(worker, next(_steps), 1.0))
    assert AgentEvent.objects.get(kind="rank_costs").refused_code == "job_ended"


def test_a_report_that_comes_twice_counts_once(world: World) -> None:
    job = world.trained()
    worker = world.rank(job, 0)
    agent, step = world.agent_of(worker), next(_steps)
    batch = agent.events(costs(worker, step, 100.0))
    agent.send(batch)
    agent.send(batch)
    agent.report(costs(worker, step - 1, 90.0))
    worker.refresh_from_db()
    assert worker.own_ms == [[1, step, 100.0]]


def many_ranks(world: World, num_ranks: int, num_slow: int) -> Job:
    """A job in the rows alone: ranks that have reported thrice, the last ones slow."""
    job = world.submit(world_size=3)
    node = world.agents[0].node
    Job.objects.filter(pk=job.pk).update(state="running", generation=1, paces_due=True)
    Generation.objects.create(
        job=job, attempt=1, number=1, store_node=node, store_prefix="p", store_secret="s",
        began_at=clock.now(),
    )  # fmt: skip
    Worker.objects.bulk_create(
        Worker(
            job=job, attempt=1, node=world.agents[rank % 2].node, rank=rank, generation=1,
            state="running", state_since=clock.now(),
            own_ms=[[1, step, 200.0 if rank >= num_ranks - num_slow else 100.0] for step in (9, 6, 3)],
        )
        for rank in range(num_ranks)
    )  # fmt: skip
    job.refresh_from_db()
    return job


def queries_of(world: World, num_ranks: int, num_slow: int) -> tuple[int, int, int]:
    """Statements that take in a report of rank 0, that compare all ranks, and that do so the next time."""
    job = many_ranks(world, num_ranks, num_slow)
    worker = world.rank(job, 0)
    agent = world.agent_of(worker)
    agent.report(costs(worker, next(_steps), 100.0))
    with CaptureQueriesContext(connection) as taking:
        agent.report(costs(worker, next(_steps), 100.0))
    job.refresh_from_db()
    view = view_of(job)
    with CaptureQueriesContext(connection) as comparing:
        compare_paces(view)
    assert len(open_now()) == num_slow
    job.paces_due = True
    with CaptureQueriesContext(connection) as again:
        compare_paces(view)
    assert {finding.count for finding in Finding.objects.all()} == {2}
    Finding.objects.all().delete()
    news_of_each = 2 * num_slow
    return len(taking), len(comparing) - news_of_each, len(again)


def test_taking_and_comparing_ask_as_often_for_many_ranks_as_for_few(world: World) -> None:
    few = queries_of(world, 8, 2)
    assert queries_of(world, 400, 40) == few
