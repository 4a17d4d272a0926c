"""Silence, judged in one place: pure predicates over the platform's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

MISSED_UNTIL_SUSPECT = 3
MISSED_UNTIL_LOST = 5
LOST_AFTER = timedelta(seconds=30)
LISTENING_GAP = timedelta(seconds=10)
"""A pause this long between two passes means that nobody was listening meanwhile."""


class Silence(Enum):
    HEARD = "heard"
    SUSPECT = "suspect"
    LOST = "lost"


@dataclass(frozen=True)
class Listening:
    """An uninterrupted span in which the platform ran and could have heard its nodes."""

    began_at: datetime
    last_at: datetime


def listening_at(before: Listening | None, now: datetime) -> Listening:
    """The span that holds at ``now``; a new one when the platform itself was away."""
    if before is None or now - before.last_at > LISTENING_GAP:
        return Listening(began_at=now, last_at=now)
    return Listening(began_at=before.began_at, last_at=max(now, before.last_at))


def silence_of(last_heard_at: datetime | None, listening: Listening, now: datetime) -> timedelta:
    """How long a node kept silent while somebody was listening. Never negative."""
    since = listening.began_at
    if last_heard_at is not None and last_heard_at > since:
        since = last_heard_at
    return max(now - since, timedelta(0))


def suspect_after(heartbeat_s: float) -> timedelta:
    """Silence of this length and more makes a node suspect."""
    return timedelta(seconds=MISSED_UNTIL_SUSPECT * heartbeat_s)


def lost_after(heartbeat_s: float) -> timedelta:
    """Silence of this length and more makes a node lost."""
    return max(LOST_AFTER, timedelta(seconds=MISSED_UNTIL_LOST * heartbeat_s))


def silence_judged(silence: timedelta, heartbeat_s: float) -> Silence:
    """What ``silence`` means for a node that was told to speak every ``heartbeat_s`` seconds."""
    if silence >= lost_after(heartbeat_s):
        return Silence.LOST
    if silence >= suspect_after(heartbeat_s):
        return Silence.SUSPECT
    return Silence.HEARD
