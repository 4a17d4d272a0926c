"""What the platform asks of agents: written once, handed out until answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import F, Q

from agent import protocol
from nodes.selectors import NodeView
from yoco_platform.core import clock
from yoco_platform.core.realtime import ring_agent_on_commit

from ..errors import OrderUnknown
from ..models import Job, Migration, Order
from ..states import ORDER_OPEN, OrderState
from ..wakeups import reconcile_soon

DEADLINE_S = 60.0
STOP_DEADLINE_S = 86_400.0
"""A stop waits for an agent that is away: its stale ranks must not outlive its return."""
AGAIN_AFTER = timedelta(seconds=5)
"""An order that was sent and not answered is sent again: the answer may have been lost."""
ORDERS_PER_REPLY = 50

_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(protocol.OrderBody)


def order_create(
    *,
    node_id: int,
    job: Job,
    body: protocol.OrderBody,
    migration: Migration | None = None,
    deadline_s: float = DEADLINE_S,
) -> Order:
    """Write one order and ring its agent on commit."""
    (order,) = orders_create(
        job=job, bodies={node_id: body}, migration=migration, deadline_s=deadline_s
    )
    return order


def orders_create(
    *,
    job: Job,
    bodies: Mapping[int, protocol.OrderBody],
    migration: Migration | None = None,
    deadline_s: float = DEADLINE_S,
) -> list[Order]:
    """Write one order for each node (id -> body) and ring their agents on commit."""
    now = clock.now()
    orders = Order.objects.bulk_create(
        Order(
            node_id=node_id,
            job=job,
            migration=migration,
            kind=str(type(body).__struct_config__.tag),
            attempt=body.attempt,
            generation=getattr(body, "generation", job.generation),
            body=_encode(body).decode(),
            created_at=now,
            deadline_at=now + timedelta(seconds=deadline_s),
        )
        for node_id, body in bodies.items()
    )
    for node_id in bodies:
        ring_agent_on_commit(node_id)
    return orders


def stop_create(
    *,
    node_id: int,
    job: Job,
    attempt: int,
    worker_ids: Iterable[UUID],
    reason: str,
    keep_state: bool = False,
) -> Order:
    """Order the end of some workers on one node."""
    body = protocol.StopOrder(
        job_id=str(job.pk),
        attempt=attempt,
        worker_ids=[str(worker_id) for worker_id in worker_ids],
        reason=reason,
        keep_state=keep_state,
    )
    return order_create(node_id=node_id, job=job, body=body, deadline_s=STOP_DEADLINE_S)


@transaction.atomic
def orders_take(*, node_id: int) -> list[protocol.Order]:
    """The orders that wait for this agent, oldest first, marked as sent."""
    now = clock.now()
    due = Q(state=OrderState.PENDING) | Q(state=OrderState.SENT, sent_at__lt=now - AGAIN_AFTER)
    waiting = list(
        Order.objects.filter(due, node_id=node_id, deadline_at__gt=now)[:ORDERS_PER_REPLY]
    )
    if waiting:
        Order.objects.filter(pk__in=[order.pk for order in waiting], state__in=ORDER_OPEN).update(
            state=OrderState.SENT, sent_at=now
        )
    return [
        protocol.Order(
            order_id=str(order.pk),
            expires_in_s=(order.deadline_at - now).total_seconds(),
            body=_body.decode(order.body),
        )
        for order in waiting
    ]


@transaction.atomic
def order_result(*, node_id: int, order_id: str, result: protocol.OrderResult) -> bool:
    """Take an agent's answer; False when the order had ended before: a late answer changes nothing.

    Raises OrderUnknown.
    """
    try:
        order = Order.objects.filter(pk=UUID(order_id), node_id=node_id).first()
    except ValueError:
        order = None
    if order is None or result.order_id != order_id:
        raise OrderUnknown(f"this node has no order {order_id}")
    ended = Order.objects.filter(pk=order.pk, state__in=ORDER_OPEN).update(
        state=OrderState.DONE if result.ok else OrderState.FAILED,
        code=result.code[:40],
        message=result.message[:2000],
        ended_at=clock.now(),
    )
    if ended and not result.ok:
        job_news(order.job_id)
        reconcile_soon()
    return bool(ended)


def orders_expire() -> int:
    """Close every order whose deadline has passed; how many."""
    now = clock.now()
    return Order.objects.filter(state__in=ORDER_OPEN, deadline_at__lte=now).update(
        state=OrderState.EXPIRED, code="deadline_passed", ended_at=now
    )


def orders_supersede(*, job: Job, kinds: Iterable[str]) -> None:
    """Close open orders that a newer one has overtaken."""
    Order.objects.filter(job=job, state__in=ORDER_OPEN, kind__in=list(kinds)).update(
        state=OrderState.EXPIRED, code="superseded", ended_at=clock.now()
    )


def job_news(job_id: int) -> None:
    """Count what happened to a job, so that a pass that runs meanwhile looks again."""

    Job.objects.filter(pk=job_id).update(news=F("news") + 1)


def store_ref(node: NodeView, prefix: str, secret: str) -> protocol.StoreRef:
    """The store of a generation on this node's agent."""
    return protocol.StoreRef(
        host=node.endpoint.host, port=node.endpoint.store_port, prefix=prefix, secret=secret
    )
