"""Back to the script's own checkpoint: missed, with the steps lost by what the new attempt has loaded."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs.models import AgentEvent, Generation, Incident, Job
from jobs.reconcile import reconcile_all
from jobs.services import job_cancel
from jobs.states import IncidentState, JobState, ProtectionState, Verdict
from sla.failures import failure_of
from sla.selectors import year_summary
from tests.sla.books import AUDITOR, make_contract

from .situations import at, torn
from .world import OPERATOR, World, points, who

pytestmark = pytest.mark.django_db


def without_source(world: World, *, saved: int | None = 150) -> Job:
    """A job that has told of a checkpoint, and then a torn rank that nobody can bring back at step 185."""
    job = world.trained(group=[])
    rank0 = world.rank(job, 0)
    if saved is not None:
        world.agent_of(rank0).report(protocol.Checkpointed(**who(rank0), rank=0, step=saved))
    world.kill(job, 2, torn(185))
    for rank in (0, 1):
        world.block(job, rank, at(184, prepared=185))
    return world_again(world, job)


def world_again(world: World, job: Job) -> Job:
    """The next attempt is launched and every rank has joined."""
    reconcile_all()
    world.launch(job)
    job.refresh_from_db()
    return job


def load(world: World, job: Job, step: int) -> None:
    for worker in world.ranks(job):
        assert worker.rank is not None
        told = protocol.CheckpointLoaded(**who(worker), rank=worker.rank, step=step)
        world.agent_of(worker).report(told)


def commit(world: World, job: Job, step: int) -> None:
    for worker in world.ranks(job):
        world.agent_of(worker).report(points(worker, step, first=step))
    reconcile_all()
    job.refresh_from_db()


def test_until_the_new_attempt_has_committed_a_step_nobody_says_what_was_lost(world: World) -> None:
    job = without_source(world)
    load(world, job, 150)
    incident = Incident.objects.get()
    job.refresh_from_db()

    assert (job.attempt, job.state, job.committed_step) == (2, JobState.RUNNING, 150)
    assert (job.protection, job.protection_reason) == (
        ProtectionState.UNPROTECTED, "no step has been committed yet",
    )  # fmt: skip
    assert (incident.state, incident.lost_steps) == (IncidentState.RECOVERING, None)
    assert incident.waiting_for == "started again: waits for the step that its script loads"


def test_a_miss_is_in_the_books_while_the_job_waits_for_places(world: World) -> None:
    contract = make_contract(world.customer)
    job = world.trained(group=[])
    world.kill(job, 2, torn(185))
    for rank in (0, 1):
        world.block(job, rank, at(184, prepared=185))
    reconcile_all()
    counts = year_summary(AUDITOR, contract).evaluation.counts

    assert Incident.objects.get().state == IncidentState.RECOVERING
    assert (counts.recorded, counts.awaiting) == (1, 1)


def test_a_new_attempt_lets_go_of_all_that_is_kept_of_the_one_before(world: World) -> None:
    job = world.trained(group=[])
    killed = world.kill(job, 2, torn(185))
    killed.refresh_from_db()
    assert killed.holds_state
    for rank in (0, 1):
        world.block(job, rank, at(184, prepared=185))
    reconcile_all()
    killed.refresh_from_db()
    job.refresh_from_db()

    assert (job.attempt, killed.holds_state) == (2, False)
    stops = world.agent_of(killed).take(protocol.StopOrder)
    assert [(b.attempt, b.worker_ids, b.keep_state) for b in stops] == [(1, [], False)]
    world_again(world, job)
    assert [worker.attempt for worker in world.ranks(job)] == [2, 2, 2]


# (told of, loaded, lost, what the reason says)
LOADED = [
    (150, 150, 35, "attempt 2 went on after step 150, loaded by its script"),
    (150, 120, 65, "loaded by its script, which had told of one at step 150"),
    (None, 120, 65, "attempt 2 went on after step 120, loaded by its script"),
    (150, 0, 185, "attempt 2 began anew: its script loaded no checkpoint, which had told of one"),
    (None, 185, 0, "attempt 2 went on after step 185, loaded by its script"),
]


@pytest.mark.parametrize(("saved", "loaded", "lost", "words"), LOADED)
def test_what_was_lost_is_the_committed_step_minus_the_loaded_one(
    world: World, saved: int | None, loaded: int, lost: int, words: str
) -> None:
    job = without_source(world, saved=saved)
    if loaded:
        load(world, job, loaded)
    commit(world, job, loaded + 1)
    incident = Incident.objects.get()

    assert (incident.state, incident.verdict) == (IncidentState.FAILED, Verdict.MISSED)
    assert incident.lost_steps == lost
    assert incident.evidence["checkpoint"] == {
        "committed_step": 185, "saved_step": saved, "loaded_step": loaded,
    }  # fmt: skip
    assert "torn" in str(incident.evidence["passed_over"])
    assert incident.verdict_reason.startswith("step 185 was committed last; ")
    assert words in incident.verdict_reason
    resumed = failure_of(incident, []).resumed
    assert resumed is not None and resumed.checkpoint_read
    assert (resumed.last_committed_step, resumed.next_committed_step) == (185, loaded + 1)
    assert resumed.recomputed_committed_steps == lost


def test_a_loss_before_the_first_step_after_a_checkpoint_loses_nothing_more(world: World) -> None:
    job = without_source(world)
    load(world, job, 150)
    world.kill(job, 2, at(150))
    for rank in (0, 1):
        world.block(job, rank, at(150))
    first, second = Incident.objects.order_by("pk")
    job.refresh_from_db()

    assert (second.verdict, second.lost_steps) == (Verdict.UNSUPPORTED, 0)
    assert (first.lost_steps, job.attempt) == (None, 3)
    world_again(world, job)
    load(world, job, 150)
    commit(world, job, 151)
    first.refresh_from_db()
    assert (first.verdict, first.lost_steps) == (Verdict.MISSED, 35)


def test_a_loss_after_that_step_is_healed_like_any(world: World) -> None:
    job = without_source(world)
    load(world, job, 150)
    commit(world, job, 151)
    world.kill(job, 2, at(151))
    for rank in (0, 1):
        world.block(job, rank, at(151))
    incident = world.heal(job)

    assert (incident.verdict, incident.lost_steps, incident.attempt) == (Verdict.COVERED, 0, 2)
    assert list(Generation.objects.filter(attempt=2).values_list("resume_at", flat=True)) == [
        150, 151,
    ]  # fmt: skip


def test_a_job_that_ends_before_it_went_on_is_missed_without_a_number(world: World) -> None:
    job = without_source(world)
    job_cancel(viewer=OPERATOR, job_id=job.pk, reason="enough")
    reconcile_all()
    incident = Incident.objects.get()

    assert (incident.verdict, incident.lost_steps) == (Verdict.MISSED, None)
    assert "the job was cancelled before it went on" in incident.verdict_reason
    assert failure_of(incident, []).resumed is None


def test_a_checkpoint_is_believed_at_the_start_alone_and_only_once(world: World) -> None:
    job = without_source(world)
    load(world, job, 150)
    worker = world.rank(job, 0)
    world.agent_of(worker).report(
        protocol.CheckpointLoaded(**who(worker), rank=0, step=170),
        protocol.CheckpointLoaded(**who(worker), rank=0, step=10**12),
        protocol.CheckpointLoaded(**{**who(worker), "generation": 2}, rank=0, step=170),
    )
    job.refresh_from_db()

    assert job.committed_step == 150
    codes = AgentEvent.objects.order_by("-pk").values_list("refused_code", flat=True)[:3]
    assert list(codes) == ["old_generation", "impossible_step", ""]
