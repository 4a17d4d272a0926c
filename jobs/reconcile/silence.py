"""A rank whose agent says nothing at all, judged while another rank waits for it. The node is not.

Silence moves nothing by itself. It needs a witness: a rank of the same generation that waits and whose
own agent is heard. What proves that every rank is there is no reason to judge: a rank that stands in
a new group, or has agreed on a fence, met all the others to do so.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from yoco_platform.core.realtime import ring_agent_on_commit

from ..causes import Evidence, cause_of
from ..models import AgentEvent, Worker
from ..recollection import arrivals
from ..services.incidents import incident_open
from ..services.orders import stop_create
from ..services.steps import worker_step
from ..states import WORKER_ALIVE, MigrationState, WorkerState
from .view import View

SILENT = timedelta(seconds=2)
"""A rung agent that says nothing for this long is silent, when a rank is stuck in a collective."""
SILENT_IN_AGREEMENT = timedelta(seconds=6)
"""The same, when the witness has met all the others since: they were there a moment ago."""
LATENESS_MAX = timedelta(seconds=5)
"""A platform that hears late must not take its own slowness for silence; no clock is trusted more."""
_STUCK = frozenset({"stalled", "unknown"})


def silence_judged(view: View) -> bool:
    """Ring the agents that a witness waits for; True when a rank was found lost."""
    witnesses = _witnesses(view)
    lost = False
    for member in view.going_on:
        others = [w for w in witnesses if w.node_id != member.node_id]
        if not others or member.state in (WorkerState.ORDERED, WorkerState.STARTING):
            continue
        if member.rung_at is None or heard_since(view, member, member.rung_at):
            _ring(view, member, others)
        elif _long_enough(view, others, member.rung_at):
            _silent(view, member)
            lost = True
    return lost


def _witnesses(view: View) -> list[Worker]:
    """Ranks of this generation that wait for others."""
    waiting = [*view.blocked, *view.stalled]
    moving = view.migration is not None and view.migration.state == MigrationState.MOVING
    if waiting or not moving or any(m.state == WorkerState.RUNNING for m in view.members):
        return waiting
    # Nobody stands in the new group yet: all that live wait for the last one.
    return [m for m in view.members if m.state in WORKER_ALIVE]


def heard_since(view: View, who: Worker, since: datetime) -> bool:
    """Whether the agent of this worker has said anything since."""
    said = [view.node(who).last_heard_at, arrivals.last(who.node_id)]
    return any(at is not None and at > since for at in said)


def _long_enough(view: View, others: list[Worker], rung_at: datetime) -> bool:
    if not any(heard_since(view, other, rung_at) for other in others):
        return False
    stuck = any(other.blocked_outcome in _STUCK for other in others)
    patience = SILENT if stuck else SILENT_IN_AGREEMENT
    quiet = view.now - rung_at
    return quiet >= patience and quiet >= patience + 2 * _lateness(view)


def _lateness(view: View) -> timedelta:
    """How long the last report of a waiting rank took to be taken in here."""
    last = (
        AgentEvent.objects.filter(job=view.job, kind="rank_blocked", refused_code="")
        .order_by("-pk")
        .first()
    )
    if last is None:
        return timedelta()
    return min(max(last.received_at - last.occurred_at, timedelta()), LATENESS_MAX)


def _ring(view: View, member: Worker, others: list[Worker]) -> None:
    if member.rung_at is not None and view.now - member.rung_at < SILENT:
        return
    member.rung_at = view.now
    member.save(update_fields=["rung_at"])
    for node_id in {member.node_id, *(other.node_id for other in others)}:
        ring_agent_on_commit(node_id)


def _silent(view: View, member: Worker) -> None:
    words = f"rank {member.rank} on {member.node.name}: its agent was rung and did not answer"
    worker_step(worker=member, to=WorkerState.LOST, reason=words)
    view.incident = incident_open(
        job=view.job,
        workers=[member],
        occurred_at=view.node(member).last_heard_at or view.now,
        summary=words,
        cause=cause_of(Evidence(silent=True)),
    )
    # When its agent comes back, it must end the rank before anything else.
    stop_create(
        node_id=member.node_id,
        job=view.job,
        attempt=member.attempt,
        worker_ids=[member.pk],
        reason="the job went on without it while its agent was silent",
    )
