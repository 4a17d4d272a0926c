"""The automatic record of an incident: what agents reported, what the platform ordered and decided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ..words import Look, incident_look

if TYPE_CHECKING:
    from jobs.models import AgentEvent, Incident


@dataclass(frozen=True)
class LogRow:
    at: datetime
    offset_s: float
    look: Look
    words: str
    source: str


def log_of(incident: Incident, limit: int = 200) -> list[LogRow]:
    """The automatic record, oldest first: agents' events, orders, stages and steps."""
    onset = incident.occurred_at
    rows: list[tuple[datetime, Look, str, str]] = []
    for event in events_of(incident, limit):
        look = (
            Look("fail", "Finding") if event.kind == "rank_exited" else Look("migrating", "Action")
        )
        rows.append((event.occurred_at, look, event_words(event), event.node.name))
    rows += [
        (step.at, incident_look(step.to_state, incident.verdict), step.reason, "platform")
        for step in incident.transitions.all()
    ]
    for migration in incident.migrations.all():
        rows.append(
            (migration.created_at, Look("migrating", "Decision"), migration.reason, "planner")
        )
    orders = incident.job.orders.filter(migration__incident=incident).select_related("node")
    for order in orders[:limit]:
        rows.append(
            (
                order.created_at,
                Look("fail" if order.code else "migrating", "Order"),
                f"{order.kind} to {order.node.name}"
                + (f", refused: {order.message or order.code}" if order.code else ""),
                "platform",
            )
        )
    rows.sort(key=lambda row: row[0])
    return [
        LogRow(at, (at - onset).total_seconds(), look, words, src) for at, look, words, src in rows
    ]


QUIET_KINDS = ("points", "state_digest", "rank_costs", "checkpointed", "worker_started")


def events_of(incident: Incident, limit: int = 500) -> list[AgentEvent]:
    """What the agents reported of this job between the onset and the return to protection."""
    events = incident.job.agent_events.filter(occurred_at__gte=incident.occurred_at).exclude(
        kind__in=QUIET_KINDS
    )
    end = incident.protected_again_at or incident.resolved_at
    if end is not None:
        events = events.filter(occurred_at__lte=end)
    return list(events.select_related("node").order_by("occurred_at", "id")[:limit])


def event_words(event: AgentEvent) -> str:
    """One sentence for an agent's event."""
    body = event.body if isinstance(event.body, dict) else {}
    rank = body.get("rank")
    who = f"rank {rank}" if rank is not None else "standby"
    if event.kind == "rank_exited":
        how = (
            f"signal {body['signal']}"
            if body.get("signal")
            else f"exit code {body.get('exit_code')}"
        )
        return f"{who} ended by {how}; custody {body.get('custody', 'unknown')}"
    if event.kind == "rank_blocked":
        return f"{who} waits and keeps everything ({body.get('outcome', '')})"
    if event.kind == "transferred":
        return f"{who} arrived from its {body.get('holder', 'source')}, digests compared"
    if event.kind == "rank_committed":
        return f"{who} committed step {body.get('step'):,} after {body.get('previous_step'):,}"
    if event.kind == "checkpoint_loaded":
        return f"{who} loaded its script's checkpoint of step {body.get('step'):,}"
    if event.kind == "rank_rejoined":
        return f"{who} stands in generation {body.get('generation')}"
    return f"{who}: {event.kind.replace('_', ' ')}"
