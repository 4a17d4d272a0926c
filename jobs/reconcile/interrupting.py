"""Stopping the ranks that still run once one is lost, and believing an agent that does not have one."""

from __future__ import annotations

from datetime import timedelta

from agent import protocol

from ..causes import Evidence, cause_of
from ..models import Order, Worker
from ..services.incidents import incident_exit_noted, incident_open
from ..services.orders import orders_create, stop_create
from ..services.steps import worker_ended_unseen
from ..states import OrderState
from .view import View

ASK_AGAIN = timedelta(seconds=1)
UNKNOWN_FOR = timedelta(seconds=8)
"""An agent that knows no such rank is believed after this long: a report of the rank's end, or the
order that takes it into the generation, may still be on its way."""


def interrupt(view: View) -> None:
    """Ask for every rank that still runs to stop.

    Its agent kills one that was asked and does not stop within ``collective_s``, and keeps its state:
    a stop order from here would keep nothing.
    """
    if not view.going_on:
        return
    sent = _asked(view)
    _unknown_given_up(view, sent)
    unasked: list[int] = []
    for node_id in sorted({m.node_id for m in view.going_on}):
        asked = sent.get(node_id)
        in_vain = (OrderState.EXPIRED, OrderState.FAILED)
        if asked is None or (
            asked[-1].state in in_vain and view.now - asked[-1].created_at > ASK_AGAIN
        ):
            unasked.append(node_id)
    if unasked:
        job = view.job
        body = protocol.InterruptOrder(
            job_id=str(job.pk), attempt=job.attempt, generation=job.generation
        )
        orders_create(job=job, bodies=dict.fromkeys(unasked, body))


def _asked(view: View) -> dict[int, list[Order]]:
    """The interrupts of this generation by node, oldest first."""
    job = view.job
    sent: dict[int, list[Order]] = {}
    for order in Order.objects.filter(
        job=job, kind="interrupt", attempt=job.attempt, generation=job.generation
    ):
        sent.setdefault(order.node_id, []).append(order)
    return sent


def _unknown_given_up(view: View, sent: dict[int, list[Order]]) -> None:
    for member in view.going_on:
        unknown = [o for o in sent.get(member.node_id, []) if o.code == "unknown_worker"]
        if len(unknown) > 1 and view.now - unknown[0].created_at > UNKNOWN_FOR:
            _not_there(view, member)


def _not_there(view: View, member: Worker) -> None:
    """Its agent has no such rank: nobody waits for it, and what may be left of it is ended."""
    words = f"{member.node.name} was asked to stop rank {member.rank} and has no such rank"
    worker_ended_unseen(worker=member, words=words)
    view.incident = incident_open(
        job=view.job,
        workers=[member],
        occurred_at=view.now,
        summary=words,
        cause=cause_of(Evidence(exited=True)),
    )
    incident_exit_noted(incident=view.incident, worker=member, step=view.job.committed_step)
    stop_create(
        node_id=member.node_id,
        job=view.job,
        attempt=member.attempt,
        worker_ids=[member.pk],
        reason="its agent does not know it as a rank, and the job goes on without it",
    )
