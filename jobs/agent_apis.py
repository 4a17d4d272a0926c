"""What agents ask of the platform all the time: heartbeat, events, results of orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest

from agent.protocol import (
    EVENTS_PER_BATCH_MAX,
    EventBatch,
    EventsReply,
    HeartbeatReply,
    HeartbeatRequest,
    OrderResult,
    RankBlocked,
    RankExited,
)
from nodes import selectors as node_reads
from nodes import services as node_services
from nodes.agent_apis import bearer
from yoco_platform.core.errors import Invalid
from yoco_platform.core.thin import agent_route

from . import selectors, services
from .errors import EventsNotTaken
from .gathering import Gathering
from .recollection import Recollection, arrivals
from .reconcile import reconcile_job
from .wakeups import reconcile_now

if TYPE_CHECKING:
    from nodes.models import Node

log = structlog.get_logger(__name__)

_compared = Recollection()
_gathering = Gathering()


@agent_route(HeartbeatRequest)
def heartbeat(request: HttpRequest, message: HeartbeatRequest) -> HeartbeatReply:
    node = _speaker(request)
    want_inventory = node_services.node_heard(node=node, request=message)
    services.marks_note(node_id=node.pk, statuses=_compared.new_marks(node.pk, message.workers))
    changed: set[int] = set()
    if _compared.standing_told(node.pk, message.workers):
        changed |= services.standings_keep(node_id=node.pk, statuses=message.workers)
    if _compared.is_new(node.pk, message.workers):
        changed |= services.workers_compare(node_id=node.pk, statuses=message.workers)
    for job_id in sorted(changed):
        _reconcile(job_id)
    version, _policy = node_reads.policy_current()
    return HeartbeatReply(
        policy_version=version,
        want_inventory=want_inventory,
        heartbeat_s=node_reads.heartbeat_s(),
        orders=services.orders_take(node_id=node.pk),
    )


@agent_route(EventBatch)
def events(request: HttpRequest, message: EventBatch) -> EventsReply:
    """Store and apply a batch, then reconcile its jobs at once, so that orders travel back with it."""
    node = _speaker(request)
    _checked(message)
    node_services.node_touched(node=node)
    taken = _taken(node, message)
    trouble = any(isinstance(event.body, RankBlocked | RankExited) for event in message.events)
    for job_id in sorted(taken.job_ids):
        if not trouble or _gathering.first(job_id, selectors.ranks_all_stopped):
            _reconcile(job_id)
    return EventsReply(accepted_to=taken.accepted_to, orders=services.orders_take(node_id=node.pk))


@agent_route(OrderResult)
def order_result(request: HttpRequest, message: OrderResult, order_id: str) -> None:
    node = _speaker(request)
    node_services.node_touched(node=node)
    services.order_result(node_id=node.pk, order_id=order_id, result=message)


def _taken(node: Node, batch: EventBatch) -> services.Taken:
    """Raises EventsNotTaken when the database was in the way: the agent keeps the batch and comes again."""
    try:
        return services.events_take(node=node, batch=batch)
    except (OperationalError, InterfaceError) as error:
        log.warning("events_not_taken", node=node.name, reason=str(error))
        raise EventsNotTaken("The events could not be stored now; send them again.") from error


def _speaker(request: HttpRequest) -> Node:
    """The node behind a request, which has been heard from this moment. Raises TokenRefused."""
    node = node_services.node_for_token(bearer(request))
    arrivals.note(node.pk)
    return node


def _checked(batch: EventBatch) -> None:
    """Raises Invalid for a batch that cannot be stored."""
    if not 1 <= len(batch.boot_id) <= 64:
        raise Invalid("boot_id has 1 to 64 characters", field="boot_id")
    if len(batch.events) > EVENTS_PER_BATCH_MAX:
        raise Invalid(f"a batch has at most {EVENTS_PER_BATCH_MAX} events", field="events")
    if not all(0 <= event.sequence < 2**63 for event in batch.events):
        raise Invalid("a sequence does not fit", field="sequence")


def _reconcile(job_id: int) -> None:
    """The events are stored whatever happens here: the clock makes good what fails."""
    try:
        reconcile_job(job_id)
    except Exception:
        log.exception("reconcile_in_request_failed", job=job_id)
        reconcile_now()
