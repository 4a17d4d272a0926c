"""The platform's clock: the only place that asks what time it is."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The time in UTC, aware."""
    return datetime.now(UTC)


def from_epoch(seconds: float) -> datetime:
    """An agent's seconds since the Unix epoch as an aware UTC time.

    Raises ``ValueError`` for what is no time at all (nan, or a year outside 1–9999).
    """
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{seconds} is no time") from error
