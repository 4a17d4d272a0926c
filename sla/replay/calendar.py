"""Which year an instant belongs to, and which version of the terms governs a year. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from ..states import LeapRule
from ..years import Span, anniversary, day_begins
from .book import Book, FileRefused, Version

DAY = 86_400_000_000
"""In microseconds. Days of the terms are 24 hours: they run from an instant."""


@dataclass(frozen=True, kw_only=True)
class Calendar:
    """``starts``: the first instants of the years up to the one after the book's. ``span``: the book's year,
    cut at the termination. ``versions``: by the first instant in force; empty where one does not say when.
    ``governed``: the version for each year, from 1."""

    book: Book
    starts: Sequence[datetime]
    span: Span
    versions: Sequence[Version]
    governed: Sequence[Version | None]

    def year_of(self, instant: datetime) -> int | None:
        """The year up to the book's that an instant lies in; None for any other."""
        year = bisect_right(self.starts, instant)
        return year if 1 <= year <= self.book.year and instant < self.span.end else None

    def continues(self) -> bool:
        """Whether the contract has a year after the book's."""
        ended = self.book.terminated
        return ended is None or ended > self.starts[self.book.year]

    def end_of(self, year: int) -> datetime:
        return self.span.end if year == self.book.year else self.starts[year]

    def governing(self, year: int) -> Version | None:
        """The version in force at the first instant of a year governs the whole of it."""
        return self.governed[year - 1]


def calendar_of(book: Book) -> Calendar:
    """Raises FileRefused where the book's year does not exist."""
    try:
        dated = _dated(book)
        rule = dated[0][1].fields.leap_rule if dated and dated[0][1].fields else ""
        leap_rule = LeapRule(rule) if rule else LeapRule.FEB_28
        # Beyond the last year that a date can have there is nothing to compute a start from.
        if book.year >= date.max.year:
            raise OverflowError("no calendar reaches that far")
        starts = [
            day_begins(anniversary(book.start, year, leap_rule), book.zone)
            for year in range(1, book.year + 2)
        ]
    except (ValueError, OverflowError) as error:
        raise FileRefused(
            "year_unknown", "$.year", f"there is no year {book.year}: {error}"
        ) from error
    start, end = starts[book.year - 1], starts[book.year]
    if book.terminated is not None and book.terminated <= start:
        words = f"year {book.year} would begin when the contract had been terminated"
        raise FileRefused("year_unknown", "$.year", words)
    if book.terminated is not None:
        end = min(end, book.terminated)
    return Calendar(
        book=book,
        starts=starts,
        span=Span(start, end),
        versions=[version for _, version in dated],
        governed=[
            next((version for since, version in reversed(dated) if since <= begin), None)
            for begin in starts
        ],
    )


def terms_problems(calendar: Calendar, version: Version | None) -> tuple[str, ...]:
    """What of the terms keeps the book's year from being decided, in words."""
    book = calendar.book
    undated = [one for one in book.versions if one.effective_from is None]
    if version is None:
        unsaid = [f"terms{_of(one)}: effective_from is empty" for one in undated]
        return (*unsaid, "terms: none in force at the first instant of the year")
    problems = [f"terms{_of(version)}: {name} is empty" for name in version.empty]
    fields = version.fields
    numerator = fields.target_numerator if fields else None
    denominator = fields.target_denominator if fields else None
    if numerator and denominator and numerator > denominator:
        problems.append(f"terms{_of(version)}: target is above 1")
    first = calendar.versions[0]
    leaps = (book.start.month, book.start.day) == (2, 29)
    if leaps and first is not version and "leap_rule" in first.empty:
        problems.append(
            f"terms{_of(first)}: leap_rule is empty, and it is that of the first version"
        )
    return (*problems, *_rivals(book, version), *(_rivals(book, first) if leaps else ()))


def _rivals(book: Book, version: Version) -> tuple[str, ...]:
    """Versions that claim the same day or the same name as one that governs."""
    others = [one for one in book.versions if one is not version]
    day = version.effective_from
    same_day = sum(one.effective_from == day for one in others)
    same_name = version.name != "" and any(one.name == version.name for one in others)
    problems = []
    if same_day:
        problems.append(f"terms: {same_day + 1} versions are in force from {day}")
    if same_name:
        problems.append(f"terms: version {version.name} is there more than once")
    return tuple(problems)


def _of(version: Version) -> str:
    return f" version {version.name}" if version.name else ""


def _dated(book: Book) -> list[tuple[datetime, Version]]:
    found = []
    for version in book.versions:
        if version.effective_from is None:
            return []
        since = _since(version.effective_from, book.zone)
        found.append((since, version.effective_from, version))
    found.sort(key=lambda one: one[:2])
    return [(since, version) for since, _, version in found]


def _since(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a day; of the first or last there is, what UTC can still say."""
    try:
        return day_begins(day, zone)
    except OverflowError:
        edge = datetime.min if day.year == date.min.year else datetime.max
        return edge.replace(tzinfo=UTC)
