"""The only writers of a state: each steps with ``UPDATE … WHERE state = <what I believed>``.

Steps have no savepoint of their own: a failover is a race, and whoever takes several steps in one
transaction means all of them or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Model, TextChoices

from agent.protocol import RankExited
from yoco_platform.core import clock
from yoco_platform.core.realtime import publish_on_commit

from ..errors import StepRefused
from ..models import Incident, IncidentTransition, Job, JobTransition, Migration, Worker
from ..states import (
    INCIDENT_FINAL,
    INCIDENT_STEPS,
    JOB_FINAL,
    JOB_STEPS,
    MIGRATION_FINAL,
    MIGRATION_STEPS,
    WORKER_STEPS,
    IncidentState,
    JobState,
    MigrationState,
    WorkerState,
)

PLATFORM = "platform"
_SEEN_BY_ALL = frozenset({"opened", "state", "verdict"})
"""News of an incident that the overview shows."""


def stepped(row: Model, steps: dict[Any, frozenset[Any]], to: TextChoices, **fields: Any) -> str:
    """Move one row and bring ``row`` up to date; the state it left. Raises StepRefused."""
    state: str = row.state  # type: ignore[attr-defined]
    name = f"{type(row).__name__.lower()} {row.pk}"
    if to not in steps[type(to)(state)]:
        raise StepRefused(f"{name} is {state}, and that does not lead to {to}")
    fields |= {"state": to, "state_since": clock.now()}
    manager = type(row)._default_manager
    if not manager.filter(pk=row.pk, state=state).update(**fields):
        raise StepRefused(f"{name} is no longer {state}: somebody else moved it first")
    for field, value in fields.items():
        setattr(row, field, value)
    return state


@transaction.atomic(savepoint=False)
def job_step(*, job: Job, to: JobState, reason: str, actor: str = PLATFORM) -> JobTransition:
    """Take a job to ``to``. Raises StepRefused."""
    fields: dict[str, Any] = {}
    if to in JOB_FINAL:
        fields = {"ended_at": clock.now(), "end_reason": reason}
    before = stepped(job, JOB_STEPS, to, **fields)
    row = JobTransition.objects.create(
        job=job, from_state=before, to_state=to, reason=reason, actor=actor, at=job.state_since
    )
    news = {"job_id": job.pk, "from_state": before, "to_state": str(to), "reason": reason}
    publish_on_commit(f"job:{job.pk}", "state", news)
    publish_on_commit("overview", "job", news)
    return row


@transaction.atomic(savepoint=False)
def worker_step(*, worker: Worker, to: WorkerState, reason: str = "", **fields: Any) -> None:
    """Take a worker to ``to`` and write ``fields`` with it. Raises StepRefused."""
    before = stepped(worker, WORKER_STEPS, to, **fields)
    publish_on_commit(
        f"job:{worker.job_id}",
        "worker",
        {
            "worker_id": str(worker.pk),
            "rank": worker.rank,
            "node_id": worker.node_id,
            "from_state": before,
            "to_state": str(to),
            "reason": reason,
        },
    )


def worker_ended_unseen(*, worker: Worker, words: str) -> None:
    """Its own agent does not have it: nobody saw how it ended, and nothing of it is held."""
    worker_step(
        worker=worker,
        to=WorkerState.EXITED,
        reason=words,
        detail=words,
        custody="unavailable",
        position=None,
        holds_state=False,
        rung_at=None,
    )


def worker_kept(*, worker: Worker, told: RankExited) -> None:
    """It was ended by an order that keeps its state: what its agent holds is known now."""
    Worker.objects.filter(pk=worker.pk).update(
        exit_code=told.exit_code,
        signal=told.signal,
        position=None if told.position is None else msgspec.to_builtins(told.position),
        custody=told.custody,
        holds_state=told.custody == "usable",
    )


@transaction.atomic(savepoint=False)
def workers_rejoin(*, workers: Sequence[Worker], generation: int) -> None:
    """Take all of these workers into a generation at once. Raises StepRefused when one cannot."""
    now = clock.now()
    ready = [state for state in WorkerState if WorkerState.REJOINING in WORKER_STEPS[state]]
    fields: dict[str, Any] = {
        "state": WorkerState.REJOINING,
        "state_since": now,
        "generation": generation,
        "rung_at": now,
        "blocked_outcome": "",
        "holds_state": False,
    }
    ids = [worker.pk for worker in workers]
    moved = Worker.objects.filter(pk__in=ids, state__in=ready).update(**fields)
    if moved != len(ids):
        raise StepRefused(f"{len(ids) - moved} of {len(ids)} workers cannot rejoin")
    for worker in workers:
        for field, value in fields.items():
            setattr(worker, field, value)


@transaction.atomic(savepoint=False)
def incident_step(*, incident: Incident, to: IncidentState, reason: str, **fields: Any) -> None:
    """Take an incident to ``to`` with a row of history. Raises StepRefused."""
    if to in INCIDENT_FINAL:
        fields.setdefault("resolved_at", clock.now())
    before = stepped(incident, INCIDENT_STEPS, to, **fields)
    IncidentTransition.objects.create(
        incident=incident, from_state=before, to_state=to, reason=reason, at=incident.state_since
    )
    incident_tell(incident, "state", from_state=before, to_state=str(to), reason=reason)


@transaction.atomic(savepoint=False)
def migration_step(*, migration: Migration, to: MigrationState, reason: str, **fields: Any) -> None:
    """Take a migration to ``to``. Raises StepRefused."""
    if to in MIGRATION_FINAL:
        fields.setdefault("ended_at", clock.now())
    before = stepped(migration, MIGRATION_STEPS, to, **fields)
    news = {
        "migration_id": migration.pk,
        "from_state": before,
        "to_state": str(to),
        "reason": reason,
    }
    migration_tell(migration, "migration", news)


def incident_tell(incident: Incident, kind: str, **data: Any) -> None:
    """Publish news of an incident where it is shown."""
    news = {"incident_id": incident.pk, "job_id": incident.job_id, **data}
    publish_on_commit(f"incident:{incident.pk}", kind, news)
    publish_on_commit(f"job:{incident.job_id}", f"incident_{kind}", news)
    if kind in _SEEN_BY_ALL:
        publish_on_commit("overview", "incident", news)


def migration_tell(migration: Migration, kind: str, data: dict[str, Any]) -> None:
    """Publish news of a migration where it is shown."""
    publish_on_commit(f"job:{migration.job_id}", kind, data)
    if migration.incident_id is not None:
        publish_on_commit(f"incident:{migration.incident_id}", kind, data)
