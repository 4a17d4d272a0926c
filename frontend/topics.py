"""What may be listened to: the topics of core.realtime, opened by the same selectors as the pages."""

from __future__ import annotations

from jobs import selectors as job_reads
from nodes import selectors as node_reads
from yoco_platform.core.auth import Permission, Viewer, may
from yoco_platform.core.errors import DomainError

from .entered import number_of
from .queries.visible import sees_fleet

TOPICS_MAX = 64
TOPIC_CHARS_MAX = 80


def topic_allowed(viewer: Viewer, topic: str) -> bool:
    """Whether the viewer may hear this topic. Unknown and forbidden are the same answer."""
    kind, _, rest = topic.partition(":")
    if kind in ("overview", "fleet") and not rest:
        # Fleet-wide news tells of other customers' rows by its timing alone.
        return sees_fleet(viewer)
    number = number_of(rest)
    if number is None:
        return False
    try:
        if kind == "node":
            node_reads.node_get(viewer, number)
        elif kind == "job":
            job_reads.job_get(viewer, number)
        elif kind == "incident":
            job_reads.incident_get(viewer, number)
        elif kind == "guarantee":
            return may(viewer, Permission.COVERAGE_READ) and viewer.customer_id in (None, number)
        else:
            return False
    except DomainError:
        return False
    return True


def topics_allowed(viewer: Viewer, topics: list[str]) -> list[str]:
    """The topics of the list that the viewer may hear, in order, each once."""
    return [topic for topic in dict.fromkeys(topics) if topic_allowed(viewer, topic)]
