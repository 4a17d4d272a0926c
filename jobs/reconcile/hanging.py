"""A rank that holds all others up: its agent records its stacks and ends it; it is healed like a dead one."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from agent.protocol import EndHungOrder, Standing

from ..causes import Evidence, cause_of
from ..hanging import Network, Suspect, judge
from ..models import Order, Worker
from ..services.incidents import incident_open
from ..services.launches import limits_of
from ..services.orders import order_create
from ..states import ORDER_OPEN, MigrationState, WorkerState
from .view import View

FRESH = timedelta(seconds=25)
"""A rank stands where its agent last said, until a heartbeat says that it moves; heartbeats come every 2 to
10 s. The agent has the last word: it refuses to end a rank that has moved."""
ORDER_S = 20.0
"""An order to end a rank is for now: later, somebody judges again."""


def hanging_judged(view: View) -> None:
    """Order the end of the rank that all others wait for, or open an incident where it is the network.

    Only while every rank is there and none has stopped: else what is missing is known already.
    """
    if view.lost or view.blocked or not any(m.standing_at for m in view.members):
        return
    if view.migration is not None and view.migration.state != MigrationState.PAUSING:
        return
    if any(m.state not in (WorkerState.RUNNING, WorkerState.BLOCKED) for m in view.members):
        return
    standings = {m.rank: _standing(view, m) for m in view.members if m.rank is not None}
    judgement = judge(standings, limits_of(view.job))
    if isinstance(judgement, Suspect):
        _end(view, judgement)
    elif isinstance(judgement, Network) and view.incident is None:
        view.incident = incident_open(
            job=view.job,
            workers=[],
            occurred_at=view.now,
            summary=judgement.words,
            cause=cause_of(Evidence()),
        )


def _standing(view: View, member: Worker) -> Standing | None:
    if member.standing is None or member.standing_at is None:
        return None
    if view.now - member.standing_at > FRESH:
        return None
    told = msgspec.convert(member.standing, Standing)
    age_s = (view.now - member.standing_at).total_seconds()
    return msgspec.structs.replace(told, still_s=told.still_s + age_s)


def _end(view: View, suspect: Suspect) -> None:
    """One order at a time; one that was refused, because the rank had moved, is judged anew."""
    job = view.job
    (member,) = [m for m in view.members if m.rank == suspect.rank]
    open_order = Order.objects.filter(
        job=job, kind="end_hung", node_id=member.node_id, state__in=ORDER_OPEN
    )
    if open_order.exists():
        return
    body = EndHungOrder(
        job_id=str(job.pk),
        attempt=job.attempt,
        generation=job.generation,
        worker_id=str(member.pk),
        still_s=suspect.still_s,
        reason=suspect.words[:400],
    )
    order_create(node_id=member.node_id, job=job, body=body, deadline_s=ORDER_S)
