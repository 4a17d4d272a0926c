"""What agents report: stored once, applied once, refused without a trace but its code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from django.db import InterfaceError, OperationalError, transaction

from agent import protocol
from yoco_platform.core import clock

from ..errors import EventRefused, StepRefused
from ..models import AgentEvent, Job
from .event_handlers import HANDLERS
from .orders import job_news
from .reports import Report

if TYPE_CHECKING:
    from nodes.models import Node

log = structlog.get_logger(__name__)

_ID_DIGITS_MAX = 18


@dataclass(frozen=True)
class Taken:
    """``accepted_to``: last sequence that is stored. ``job_ids``: jobs that something happened to."""

    accepted_to: int
    job_ids: frozenset[int]


@transaction.atomic
def events_take(*, node: Node, batch: protocol.EventBatch) -> Taken:
    """Store and apply a batch in order. A repeat changes nothing.

    Raises OperationalError or InterfaceError, and then nothing is stored.
    """
    jobs = _jobs_locked(node, batch)
    known = _known(node, batch)
    rows: list[AgentEvent] = []
    touched: set[int] = set()
    for event in batch.events:
        if event.sequence in known:
            continue
        known.add(event.sequence)
        job = jobs.get(_job_id(event.body))
        row = event_take(node=node, boot_id=batch.boot_id, event=event, job=job)
        if row is not None:
            rows.append(row)
        if job is not None and row is not None and not row.refused_code:
            touched.add(job.pk)
    AgentEvent.objects.bulk_create(rows)
    for job_id in sorted(touched):
        job_news(job_id)
    accepted_to = max((event.sequence for event in batch.events), default=0)
    return Taken(accepted_to=accepted_to, job_ids=frozenset(touched))


def event_take(
    *, node: Node, boot_id: str, event: protocol.Event, job: Job | None
) -> AgentEvent | None:
    """Apply one new event of a job that the caller has locked; the row to store for it.

    What is refused changes nothing, and its row carries the code. Points and costs need no row: they are
    keyed by their step, and every rank sends them every few seconds.
    """
    code = "unknown_job" if job is None else _applied(node, event, job)
    if isinstance(event.body, protocol.Points | protocol.RankCosts) and not code:
        return None
    kind = str(type(event.body).__struct_config__.tag)
    if code:
        log.info("event_refused", node=node.name, kind=kind, code=code)
    return AgentEvent(
        node=node,
        boot_id=boot_id,
        sequence=event.sequence,
        kind=kind,
        job=job,
        body=_data(event.body),
        occurred_at=_occurred(event),
        received_at=clock.now(),
        refused_code=code,
    )


def _known(node: Node, batch: protocol.EventBatch) -> set[int]:
    """Sequences of this batch that are stored already. A repeat of it waits for the jobs' locks."""
    return set(
        AgentEvent.objects.filter(
            node=node,
            boot_id=batch.boot_id,
            sequence__in=[event.sequence for event in batch.events],
        ).values_list("sequence", flat=True)
    )


def _applied(node: Node, event: protocol.Event, job: Job) -> str:
    """Apply one event; the code of its refusal, or "". A bug of ours loses this event, not the rest.

    A database that gives way or goes away says nothing about the event: the whole batch fails, and the
    agent sends it again. Raises OperationalError, InterfaceError.
    """
    report = Report(node=node, job=job, occurred_at=_occurred(event), now=clock.now())
    try:
        with transaction.atomic():
            HANDLERS[type(event.body)](report, event.body)
    except EventRefused as refused:
        code = refused.reason
    except StepRefused:
        code = StepRefused.code
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        log.exception("event_failed", node=node.name, kind=type(event.body).__name__)
        code = "apply_failed"
    else:
        return ""
    job.refresh_from_db()
    return code


def _data(body: protocol.EventBody) -> Any:  # Any: JSON for a JSONField
    return msgspec.to_builtins(body)


def _occurred(event: protocol.Event) -> datetime:
    """The agent's clock; ours where that is no time at all."""
    try:
        return clock.from_epoch(event.occurred_at)
    except ValueError:
        return clock.now()


def _job_id(body: protocol.EventBody) -> int:
    text = body.job_id
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS_MAX else 0


def _jobs_locked(node: Node, batch: protocol.EventBatch) -> dict[int, Job]:
    """The jobs of a batch in this node's cluster, locked in one order over all requests."""
    ids = {_job_id(event.body) for event in batch.events}
    jobs = Job.objects.select_for_update(no_key=True).filter(pk__in=ids, cluster_id=node.cluster_id)
    return {job.pk: job for job in jobs.order_by("pk")}
