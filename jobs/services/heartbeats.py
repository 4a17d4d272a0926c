"""The workers an agent says it has, compared with those it should have; differences are corrected."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

import msgspec
import structlog
from django.db import transaction
from django.db.models import BigIntegerField, Case, CharField, F, Value, When

from agent import protocol
from yoco_platform.core import clock

from ..causes import Evidence, cause_of
from ..models import Job, Order, Worker
from ..states import JOB_FINAL, ORDER_OPEN, WORKER_ALIVE, WORKER_ENDED, WorkerState
from .incidents import incident_exit_noted, incident_open
from .orders import job_news, stop_create
from .steps import worker_ended_unseen

log = structlog.get_logger(__name__)

CONTRADICTS_AFTER = timedelta(seconds=10)
MISSING_AFTER = timedelta(seconds=8)
"""A worker that its agent does not list this long has ended unseen: events travel faster than that."""


@transaction.atomic
def workers_compare(*, node_id: int, statuses: Iterable[protocol.WorkerStatus]) -> set[int]:
    """Stop what should not run there, note what is missing; the jobs that changed."""
    said = list(statuses)
    running = {status.worker_id for status in said if status.state != "exited"}
    changed = _stale_stopped(node_id, running)
    # One that has ended is not missing: its own report is on the way.
    return changed | _missing_noted(node_id, {status.worker_id for status in said})


def marks_note(*, node_id: int, statuses: Iterable[protocol.WorkerStatus]) -> None:
    """Keep the newest mark of each rank's trail: the witness of a node that is lost later. One statement."""
    told = {pk: s for s in statuses if (pk := _uuid(s.worker_id)) is not None}
    if not told:
        return
    steps = [When(pk=pk, then=Value(status.mark_step)) for pk, status in told.items()]
    heads = [When(pk=pk, then=Value(status.mark_head[:32])) for pk, status in told.items()]
    Worker.objects.filter(pk__in=told, node_id=node_id, state__in=WORKER_ALIVE).update(
        mark_step=Case(*steps, output_field=BigIntegerField()),
        mark_head=Case(*heads, output_field=CharField()),
    )


def standings_keep(*, node_id: int, statuses: Iterable[protocol.WorkerStatus]) -> set[int]:
    """Where ranks stand that do not move; the jobs of those that have only come to stand still.

    Nothing else writes it, and no job is locked here: a pass that holds one writes workers. Whoever goes on
    standing is judged by the clock.
    """
    now = clock.now()
    told = {pk: s for s in statuses if (pk := _uuid(s.worker_id)) is not None}
    known = Worker.objects.filter(pk__in=told, node_id=node_id)
    moving = [pk for pk, status in told.items() if status.standing is None]
    known.filter(pk__in=moving, standing_at__isnull=False).update(standing=None, standing_at=None)
    still = [
        worker
        for worker in known.filter(
            pk__in=set(told) - set(moving), attempt=F("job__attempt"), generation=F("job__generation"),
            state__in=WORKER_ALIVE, rank__isnull=False,
        )
        if (told[worker.pk].attempt, told[worker.pk].generation) == (worker.attempt, worker.generation)
    ]  # fmt: skip
    newly = {worker.job_id for worker in still if worker.standing_at is None}
    for worker in still:
        worker.standing = msgspec.to_builtins(told[worker.pk].standing)
        worker.standing_at = now
    Worker.objects.bulk_update(still, ["standing", "standing_at"])
    return newly


def _stale_stopped(node_id: int, listed: set[str]) -> set[int]:
    known = Worker.objects.select_related("job").filter(
        pk__in=[worker_id for worker_id in map(_uuid, listed) if worker_id], node_id=node_id
    )
    stopped: set[int] = set()
    for worker in known:
        if _is_stale(worker) and not _stop_waits(worker):
            reason = (
                f"it is {worker.state} to the platform: its rank lives elsewhere or its job ended"
            )
            stop_create(
                node_id=node_id,
                job=worker.job,
                attempt=worker.attempt,
                worker_ids=[worker.pk],
                reason=reason,
            )
            log.warning("stale_worker_stopped", worker=str(worker.pk), job=worker.job_id)
            stopped.add(worker.job_id)
    return stopped


def _is_stale(worker: Worker) -> bool:
    """Whether its agent should end it. A stop keeps nothing, so what is kept is never stopped.

    A heartbeat may have been written before the end that we know of already: only an end that is old
    news is a contradiction. A rank that went on without its silent agent is ended at once.
    """
    if worker.state == WorkerState.LOST:
        return True
    over = (
        worker.state in WORKER_ENDED
        or worker.attempt != worker.job.attempt
        or worker.job.state in JOB_FINAL
    )
    return over and not worker.holds_state and clock.now() - worker.state_since > CONTRADICTS_AFTER


def _stop_waits(worker: Worker) -> bool:
    open_stops = Order.objects.filter(
        node_id=worker.node_id, job_id=worker.job_id, kind="stop", state__in=ORDER_OPEN
    )
    return any(
        str(worker.pk) in order.body or '"worker_ids":[]' in order.body for order in open_stops
    )


def _missing_noted(node_id: int, listed: set[str]) -> set[int]:
    now = clock.now()
    alive = Worker.objects.filter(node_id=node_id, state__in=WORKER_ALIVE).exclude(
        state=WorkerState.ORDERED
    )
    changed: set[int] = set()
    for worker in alive:
        missing = str(worker.pk) not in listed
        if not missing and worker.missing_since is not None:
            Worker.objects.filter(pk=worker.pk).update(missing_since=None)
        elif missing and worker.missing_since is None:
            Worker.objects.filter(pk=worker.pk).update(missing_since=now)
        elif missing and now - worker.missing_since > MISSING_AFTER:  # type: ignore[operator]
            _ended_unseen(worker.pk)
            changed.add(worker.job_id)
    return changed


def _ended_unseen(worker_id: UUID) -> None:
    """A worker that its own agent no longer knows: its end was not seen, and nothing is held of it."""
    found = Worker.objects.filter(pk=worker_id).values_list("job_id", flat=True).get()
    job = Job.objects.select_for_update().get(pk=found)
    worker = Worker.objects.select_related("node").get(pk=worker_id)
    if worker.state not in WORKER_ALIVE or worker.state == WorkerState.ORDERED:
        return
    words = f"{worker.node.name} no longer knows the worker: it ended unseen"
    worker_ended_unseen(worker=worker, words=words)
    member = worker.rank is not None and worker.generation == job.generation
    if member and not worker.is_stopping and worker.finished_step is None:
        incident = incident_open(
            job=job,
            workers=[worker],
            occurred_at=worker.missing_since or clock.now(),
            summary=f"rank {worker.rank}: {words}",
            cause=cause_of(Evidence(silent=True)),
        )
        incident_exit_noted(incident=incident, worker=worker, step=job.committed_step)
    job_news(job.pk)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
