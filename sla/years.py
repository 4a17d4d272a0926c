"""Contract years: anchored at the first date in the contract's own zone, as half-open UTC spans. Pure."""

from __future__ import annotations

import calendar
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from .states import LeapRule


@dataclass(frozen=True)
class Span:
    """[start, end) in UTC."""

    start: datetime
    end: datetime

    def __contains__(self, instant: datetime) -> bool:
        return self.start <= instant < self.end


def microseconds(start: datetime, end: datetime) -> int:
    """From one instant to another; whole numbers, so that no span of the terms is too long to compare."""
    return (end - start) // timedelta(microseconds=1)


def measured_bp(spans: Iterable[Span], year: Span, as_of: datetime) -> int | None:
    """Share of the year passed at ``as_of`` that lies within ``spans``, in basis points, cut off.

    Overlaps count once. None while nothing of the year has passed.
    """
    end = min(year.end, as_of)
    if end <= year.start:
        return None
    measured, until = 0, year.start
    for span in sorted(spans, key=lambda span: span.start):
        begins, ends = max(span.start, until), min(span.end, end)
        if begins < ends:
            measured += microseconds(begins, ends)
            until = ends
    return measured * 10_000 // microseconds(year.start, end)


def day_begins(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a local day, in UTC.

    Where midnight exists twice, the first; where it does not exist, the first instant after.
    """
    midnight = datetime.combine(day, time(0), tzinfo=zone)
    instant = midnight.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return instant
    # In a gap, fold 1 reads the clock that follows (too early) and fold 0 the one before (too late).
    early, late = midnight.replace(fold=1).astimezone(UTC), instant
    before = early.astimezone(zone).utcoffset()
    while late - early > timedelta(microseconds=1):
        middle = early + (late - early) / 2
        if middle.astimezone(zone).utcoffset() == before:
            early = middle
        else:
            late = middle
    return late


def anniversary(first: date, ordinal: int, leap_rule: LeapRule) -> date:
    """The date on which year ``ordinal`` (from 1) begins; always counted from the first date."""
    year = first.year + ordinal - 1
    if (first.month, first.day) == (2, 29) and not calendar.isleap(year):
        return date(year, 2, 28) if leap_rule == LeapRule.FEB_28 else date(year, 3, 1)
    return first.replace(year=year)


def year_span(first: date, zone: ZoneInfo, ordinal: int, leap_rule: LeapRule) -> Span:
    """The span of year ``ordinal`` of a contract that began on ``first``."""
    return Span(
        start=day_begins(anniversary(first, ordinal, leap_rule), zone),
        end=day_begins(anniversary(first, ordinal + 1, leap_rule), zone),
    )


def ordinal_at(first: date, zone: ZoneInfo, leap_rule: LeapRule, instant: datetime) -> int | None:
    """The year an instant belongs to; None before the first."""
    guess = instant.astimezone(zone).year - first.year + 1
    for ordinal in (guess - 1, guess, guess + 1):
        if ordinal >= 1 and instant in year_span(first, zone, ordinal, leap_rule):
            return ordinal
    return None
