"""A run that ends while a failure of it is open: what the incident says, and what the books say."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs import services
from jobs.models import Incident, Job
from jobs.reconcile import reconcile_all
from jobs.states import JobState
from yoco_platform.core.auth import Role, Viewer, viewer_of_token
from yoco_platform.core.models import ApiToken, Customer

from .situations import at
from .world import OPERATOR, World, who

pytestmark = pytest.mark.django_db


def ended(job: Job) -> Incident:
    return Incident.objects.get(job=job)


def scheduler(world: World, customer: Customer | None) -> Viewer:
    token = ApiToken.objects.create(
        name="slurm",
        role=Role.SCHEDULER,
        token_hash=f"hash-{ApiToken.objects.count()}",
        cluster=world.cluster,
        customer=customer,
    )
    return viewer_of_token(token)


def cancelled(world: World, viewer: Viewer) -> Incident:
    job = world.trained()
    world.kill(job, 2, at(184))
    services.job_cancel(viewer=viewer, job_id=job.pk, reason="not needed")
    reconcile_all()
    return ended(job)


def test_the_customer_cancels(world: World) -> None:
    incident = cancelled(world, scheduler(world, world.customer))
    assert (incident.verdict, incident.evidence["job_ended"]) == (
        "excluded",
        "cancelled_by_customer",
    )


def test_somebody_else_cancels_and_two_persons_have_to_decide(world: World) -> None:
    incident = cancelled(world, OPERATOR)
    assert (incident.verdict, incident.evidence["job_ended"]) == (
        "awaiting",
        "cancelled_by_platform",
    )


def test_a_token_that_may_be_anybodys_is_not_the_customers(world: World) -> None:
    scheduler(world, None)
    incident = cancelled(world, scheduler(world, world.customer))
    assert incident.evidence["job_ended"] == "cancelled_by_platform"


def test_the_run_finishes_after_its_last_apply(world: World) -> None:
    job = world.trained()
    for rank in (0, 1):
        worker = world.rank(job, rank)
        world.agent_of(worker).report(
            protocol.RankFinished(**who(worker), rank=rank, step=185, trail_head="t")
        )
    world.kill(job, 2, at(185))
    reconcile_all()
    job.refresh_from_db()
    incident = ended(job)
    assert job.state == JobState.FINISHED
    assert (incident.verdict, incident.lost_steps) == ("excluded", 0)
    assert incident.evidence["job_ended"] == "finished"
