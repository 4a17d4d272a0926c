"""What ranks report of their own time becomes a finding on the slow one's node, shown like any."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs.models import Job
from jobs.reconcile import reconcile_all
from jobs.services import job_cancel
from nodes.models import Finding

from .situations import at
from .world import OPERATOR, World, who

pytestmark = pytest.mark.django_db


def report(world: World, job: Job, *own_ms: float) -> None:
    """Every rank reports once, rank 0 last: with its next report these are compared."""
    for rank in reversed(range(len(own_ms))):
        worker = world.rank(job, rank)
        costs = {"vote_ms": 1.0, "own_ms": own_ms[rank]}
        body = protocol.RankCosts(**who(worker), rank=rank, step=20, costs=costs)
        world.agent_of(worker).report(body)


def open_now() -> list[tuple[int, str]]:
    return [(f.node_id, f.entity) for f in Finding.objects.filter(cleared_at__isnull=True)]


def test_a_rank_that_is_slow_thrice_is_found_on_its_node(world: World) -> None:
    job = world.trained()
    report(world, job, 100.0, 102.0, 150.0)
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
    for _ in range(4):
        report(world, job, 100.0, 102.0, 150.0)
    assert len(open_now()) == 1
    job_cancel(viewer=OPERATOR, job_id=job.pk, reason="enough")
    reconcile_all()

    assert open_now() == []
    assert Finding.objects.get().evidence[-1] == "the job is cancelled"
