"""What a socket missed while it was away, read from the outbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Max, Min

from yoco_platform.core import clock
from yoco_platform.core.models import OutboxNotice

REPLAY_MAX = 500
OVERLAP = 64
"""A number is given out before its transaction commits, so a lower one may become visible later."""
OVERLAP_S = 30.0


@dataclass(frozen=True)
class Missed:
    """``gaps`` are topics that must be read again; ``notices`` are in the form of the socket."""

    sequence: int
    notices: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


def sequence_now() -> int:
    """The last number of the outbox, 0 when it is empty."""
    return OutboxNotice.objects.aggregate(last=Max("id"))["last"] or 0


def notices_missed(topics: list[str], since: int | None) -> Missed:
    """Notices of the topics after ``since``, at most REPLAY_MAX; more, or pruned ones, are gaps.

    ``since`` None asks for nothing old. Notices just below ``since`` are repeated: readers ignore
    numbers that they have seen.
    """
    edge = OutboxNotice.objects.aggregate(first=Min("id"), last=Max("id"))
    first, last = edge["first"] or 0, edge["last"] or 0
    if since is None or not topics:
        return Missed(sequence=last)
    if since > last or (first and since < first - 1):
        return Missed(sequence=last, gaps=topics)
    rows = list(
        OutboxNotice.objects.filter(topic__in=topics, id__gt=since).order_by("id")[: REPLAY_MAX + 1]
    )
    if len(rows) > REPLAY_MAX:
        return Missed(sequence=last, gaps=topics)
    late = OutboxNotice.objects.filter(
        topic__in=topics,
        id__gt=since - OVERLAP,
        id__lte=since,
        at__gte=clock.now() - timedelta(seconds=OVERLAP_S),
    ).order_by("id")
    return Missed(sequence=last, notices=[_as_sent(row) for row in [*late, *rows]])


def _as_sent(row: OutboxNotice) -> dict[str, Any]:
    return {
        "n": row.pk,
        "t": row.topic,
        "k": row.kind,
        "at": row.at.isoformat().replace("+00:00", "Z"),
        "d": row.data,
    }
