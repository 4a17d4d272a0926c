"""Incidents: interruption, or averted interruption, of one job by one root cause."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from yoco_platform.core import clock

from ..causes import Cause
from ..models import Generation, Incident, Job, Worker
from ..selectors import incident_open_of
from ..signals import incident_resolved
from ..states import IncidentState, JobState, Verdict
from .steps import incident_step, incident_tell, job_step

STACKS_CHARACTERS_MAX = 20_000
STACKS_KEPT = 4
CLOCK_TOLERANCE = timedelta(minutes=1)
"""How far a node's clock may be from ours before what it says is not believed."""


@transaction.atomic(savepoint=False)
def incident_open(
    *,
    job: Job,
    workers: list[Worker],
    occurred_at: datetime,
    summary: str,
    cause: Cause | None = None,
    predicted: bool = False,
    broke: tuple[int, int] | None = None,
) -> Incident:
    """Open an incident, or join the open one: until the job has passed the step before it, a further
    failure belongs to the first. A cause known already is not overwritten by a join. ``occurred_at``
    that cannot be true is replaced by now; what was said stays in ``evidence["clock"]``.

    ``broke``: (generation, last committed step) at onset, where that is not the present.
    """
    known = incident_open_of(job)
    if known is not None:
        return _joined(known, workers, summary)
    now = clock.now()
    generation, step = broke or (job.generation, job.committed_step)
    onset, doubt = _onset(job, generation, occurred_at, now)
    incident = Incident.objects.create(
        job=job,
        customer_id=job.customer_id,
        cluster_id=job.cluster_id,
        attempt=job.attempt,
        generation=generation,
        predicted=predicted,
        state_since=now,
        cause_class=None if cause is None else cause.cause_class,
        summary=summary,
        ranks=sorted({worker.rank for worker in workers if worker.rank is not None}),
        node_names=sorted({worker.node.name for worker in workers}),
        step=step,
        occurred_at=onset,
        observed_at=now,
        evidence=_cause_evidence(doubt, cause),
        is_demo=job.is_demo,
    )
    incident_tell(incident, "opened", summary=summary, predicted=predicted)
    if job.state == JobState.RUNNING:
        job_step(job=job, to=JobState.RECOVERING, reason=f"{incident.number}: {summary}")
    return incident


def _onset(
    job: Job, generation: int, said: datetime, now: datetime
) -> tuple[datetime, dict[str, Any]]:
    """When it happened, and evidence of a clock that is wrong.

    Nothing breaks a generation before it began. A report may be hours late, as the platform may have
    been away, so an early time alone is no reason for doubt.
    """
    began_at = (
        Generation.objects.filter(job=job, attempt=job.attempt, number=generation)
        .values_list("began_at", flat=True)
        .first()
    ) or job.created_at
    if began_at - CLOCK_TOLERANCE <= said <= now + CLOCK_TOLERANCE:
        return min(said, now), {}
    return now, {"clock": {"reported": said.isoformat(), "not_before": began_at.isoformat()}}


def _joined(incident: Incident, workers: list[Worker], summary: str) -> Incident:
    ranks = sorted({*incident.ranks, *(w.rank for w in workers if w.rank is not None)})
    names = sorted({*incident.node_names, *(worker.node.name for worker in workers)})
    joined = [*incident.evidence.get("joined", []), summary]
    incident.ranks, incident.node_names = ranks, names
    incident.evidence = {**incident.evidence, "joined": joined[-50:]}
    incident.save(update_fields=["ranks", "node_names", "evidence"])
    incident_tell(incident, "joined", summary=summary)
    return incident


def _cause_evidence(evidence: dict[str, Any], cause: Cause | None) -> dict[str, Any]:
    if cause is None:
        return evidence
    return {**evidence, "cause": {"row": cause.row, "words": cause.words}}


def incident_cause_set(*, incident: Incident, cause: Cause, anew: bool = False) -> None:
    """Store what broke and which row of the table said so, unless a row has spoken before.

    ``anew``: what is known by now overrules it.
    """
    if "cause" in incident.evidence and not anew:
        return
    incident.cause_class = cause.cause_class
    incident.evidence = _cause_evidence(incident.evidence, cause)
    incident.save(update_fields=["cause_class", "evidence"])


def incident_exit_noted(
    *, incident: Incident, worker: Worker, step: int, ran: bool = False
) -> None:
    """Keep how a rank ended, so that the same end at the same step elsewhere is recognised.

    ``ran``: it was training when it ended.
    """
    note = {
        "rank": worker.rank,
        "node": worker.node.name,
        "step": step,
        "exit_code": worker.exit_code,
        "signal": worker.signal,
        "detail": worker.detail,
        "exception": worker.exception,
        "ran": ran,
    }
    exits = [*incident.evidence.get("exits", []), note]
    incident.evidence = {**incident.evidence, "exits": exits[-50:]}
    incident.save(update_fields=["evidence"])


def incident_stacks_noted(*, incident: Incident, worker: Worker, stacks: str) -> None:
    """Keep where a rank stood that was ended because it hung. Text of a process: bounded, never trusted."""
    note = {
        "rank": worker.rank,
        "node": worker.node.name,
        "at": clock.now().isoformat(),
        "text": stacks[:STACKS_CHARACTERS_MAX],
    }
    kept = [*incident.evidence.get("stacks", []), note]
    incident.evidence = {**incident.evidence, "stacks": kept[-STACKS_KEPT:]}
    incident.save(update_fields=["evidence"])


def incident_waits(*, incident: Incident, words: str) -> None:
    """Say what the planner waits for; "" when it waits no more."""
    if incident.waiting_for == words:
        return
    incident.waiting_for = words
    incident.save(update_fields=["waiting_for"])
    incident_tell(incident, "waiting", words=words)


@transaction.atomic(savepoint=False)
def incident_end(
    *,
    incident: Incident,
    to: IncidentState,
    verdict: Verdict,
    reason: str,
    lost_steps: int | None,
    pause_ms: float | None = None,
    proof: dict[str, Any] | None = None,
) -> None:
    """Close an incident with its verdict and proof, and tell the apps above once it is committed.

    Without a cause there is no verdict yet: it is stored as awaiting, and what the evidence alone says
    stays in ``evidence["outcome"]``.
    """
    evidence = {**incident.evidence, **(proof or {}), "outcome": str(verdict)}
    unclear = incident.cause_class is None and verdict in (Verdict.COVERED, Verdict.MISSED)
    incident_step(
        incident=incident,
        to=to,
        reason=reason,
        verdict=Verdict.AWAITING if unclear else verdict,
        verdict_reason=f"{reason}; what broke is not known yet" if unclear else reason,
        lost_steps=lost_steps,
        pause_ms=pause_ms,
        waiting_for="",
        evidence=evidence,
    )
    incident_id = incident.pk

    def tell() -> None:
        incident_resolved.send_robust(sender=Incident, incident_id=incident_id)

    transaction.on_commit(tell, robust=True)


def incidents_protected_again(*, job: Job) -> None:
    """The job is protected again: close that clock on every incident that still has it open."""
    waiting = Incident.objects.filter(
        job=job, resolved_at__isnull=False, protected_again_at__isnull=True
    )
    for incident in waiting:
        incident.protected_again_at = clock.now()
        incident.save(update_fields=["protected_again_at"])
        incident_tell(incident, "protected_again")
