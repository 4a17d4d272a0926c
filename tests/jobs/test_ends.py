"""A run that ends while a failure of it is open: what the incident says, and what the books say."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs import agent_apis, services
from jobs.models import Incident, Job, Migration
from jobs.reconcile import reconcile_all
from jobs.states import IncidentState, JobState, MigrationState
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
    finished(world, job, 185, (0, 1))
    world.kill(job, 2, at(185))
    reconcile_all()
    job.refresh_from_db()
    incident = ended(job)
    assert job.state == JobState.FINISHED
    assert (incident.verdict, incident.lost_steps) == ("excluded", 0)
    assert incident.evidence["job_ended"] == "finished"


def finished(world: World, job: Job, step: int, ranks: tuple[int, ...] = (0, 1, 2)) -> None:
    for rank in ranks:
        worker = world.rank(job, rank)
        world.agent_of(worker).report(
            protocol.RankFinished(**who(worker), rank=rank, step=step, trail_head="t")
        )


def moved(world: World, **transfer: str) -> Job:
    """A job whose rank 2 has moved to the standby: nobody has told of the new generation yet."""
    job = world.trained()
    world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.transfer(job, world.regroup(job), **transfer)
    assert ended(job).state == IncidentState.RECOVERING
    return job


@pytest.mark.parametrize("seen", ["recovering", "verifying"])
@pytest.mark.parametrize("last", ["returned", "exited", "killed"])
@pytest.mark.parametrize(("digest", "verdict"), [("d", "covered"), ("BAD", "missed")])
def test_a_run_that_finishes_with_its_proof_is_judged_by_it(
    world: World, monkeypatch: pytest.MonkeyPatch, seen: str, last: str, digest: str, verdict: str
) -> None:
    job = moved(world, target_digest=digest)
    if seen == "verifying":
        world.rejoin(job)
        assert ended(job).state == IncidentState.VERIFYING
    with monkeypatch.context() as away:
        away.setattr(agent_apis, "_reconcile", lambda job_id: None)
        if seen == "recovering":
            world.rejoin(job)
        world.commit_first(job)
        if last == "killed":
            world.kill(job, 2, at(185))
        finished(world, job, 185, (0, 1) if last == "killed" else (0, 1, 2))
        for rank in range(3) if last == "exited" else ():
            world.kill(job, rank, at(185), exit_code=0, signal=None)
    reconcile_all()
    job.refresh_from_db()
    incident = ended(job)

    assert job.state == JobState.FINISHED
    assert Migration.objects.get().state == MigrationState.DONE
    assert (incident.state, incident.verdict) == (IncidentState.RESOLVED, verdict)
    assert incident.evidence["transfer_verified"]["holds"] == (digest == "d")
    assert "job_ended" not in incident.evidence


def test_a_run_that_finishes_without_its_proof_ends_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = moved(world)
    with monkeypatch.context() as away:
        away.setattr(agent_apis, "_reconcile", lambda job_id: None)
        finished(world, job, 185)
    reconcile_all()
    job.refresh_from_db()
    incident = ended(job)

    assert (job.state, Migration.objects.get().state) == (JobState.FINISHED, MigrationState.FAILED)
    assert (incident.state, incident.verdict) == (IncidentState.RESOLVED, "excluded")
    assert incident.evidence["job_ended"] == "finished"
