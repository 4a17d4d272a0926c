"""What is known of a book at its ``as_of``: each failure once, and the decisions that count. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..classification import Failure
from ..decisions import BOUNDARY_SIDES, Decision, decision_problems
from ..grouping import Case, Placed
from ..years import microseconds
from .book import Book, Report
from .calendar import Calendar

Key = tuple[str, str]
"""(id, source): how a report is known."""

MILLISECOND = 1000
"""In microseconds."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """``exclusions``: valid decisions by failure, earliest first. ``invalid_decisions``: (id, why).
    ``contradicted``: the contents of reports of one name that differ."""

    cases: Sequence[Case]
    exclusions: dict[Key, list[Decision]]
    invalid_decisions: Sequence[tuple[str, str]]
    contradicted: dict[Key, list[Case]]
    problems: Sequence[str]

    def problems_of(self, placed: Iterable[Placed], unsure: Collection[Key]) -> list[str]:
        """What keeps the year from being decided, given the failures that are counted in it and the
        contradicted reports that reach into it."""
        keys = {(one.case.failure.id, one.case.source) for one in placed}
        found = [
            f"failures: {_named(key)} was reported with different contents"
            for key in sorted(self.contradicted)
            if key in unsure or key in keys
        ]
        for key in sorted(keys & self.exclusions.keys()):
            decisions = self.exclusions[key]
            if len({one.category for one in decisions}) > 1:
                ids = ", ".join(one.id for one in decisions)
                found.append(f"decisions: {ids} exclude {_named(key)} under different categories")
        return [*found, *self.problems]


def recorded(book: Book, calendar: Calendar) -> Recorded:
    """Sort what had been recorded by ``as_of``."""
    reports: dict[Key, list[Report]] = defaultdict(list)
    for report in book.reports:
        if report.failure.recorded <= book.as_of:
            reports[report.failure.id, report.source].append(report)
    decisions, problems = _decisions(book)
    by_id: dict[str, list[Key]] = defaultdict(list)
    for key in reports:
        by_id[key[0]].append(key)
    # Sides first: they tell the year whose terms an exclusion is held against.
    sides, wrong = _valid(decisions, "boundary", reports, by_id, lambda key: BOUNDARY_SIDES)
    cases: list[Case] = []
    years: dict[Key, int | None] = {}
    contradicted: dict[Key, list[Case]] = {}
    for key, same in reports.items():
        contents = list(dict.fromkeys(report.failure for report in same))
        if len(contents) > 1:
            # The first recorded one is counted; what that decides is blocked anyway.
            contents.sort(key=lambda one: (one.recorded, repr(one)))
        put = [_year(one, key, sides.get(key, []), calendar) for one in contents]
        years[key] = put[0][0]
        problems += dict.fromkeys(problem for _, problem in put if problem)
        placed = [
            _case(one, key, year, calendar) for one, (year, _) in zip(contents, put, strict=True)
        ]
        cases.append(placed[0])
        if len(contents) > 1:
            contradicted[key] = placed
    exclusions, wrong_too = _valid(
        decisions, "exclude", reports, by_id, lambda key: _categories(years[key], calendar)
    )
    return Recorded(
        cases=cases,
        exclusions=exclusions,
        invalid_decisions=[words for _, words in sorted((wrong | wrong_too).items())],
        contradicted=contradicted,
        problems=problems,
    )


def _known(failure: Failure, as_of: datetime) -> Failure:
    """Without what had not happened, or not been recorded, by ``as_of``."""
    if failure.resumed is not None and failure.resumed.recorded > as_of:
        failure = replace(failure, resumed=None)
    if failure.steady_at is not None and failure.steady_at > as_of:
        failure = replace(failure, steady_at=None)
    return failure


def _decisions(book: Book) -> tuple[list[Decision], list[str]]:
    """Those made by ``as_of``, each once, in the order of the file."""
    found: dict[Decision, None] = dict.fromkeys(
        one for one in book.decisions if one.decided <= book.as_of
    )
    ids: dict[str, int] = defaultdict(int)
    for one in found:
        ids[one.id] += 1
    problems = [
        f"decisions: {name} is there with different contents"
        for name, count in sorted(ids.items())
        if count > 1
    ]
    return list(found), problems


def _valid(
    decisions: Sequence[Decision],
    kind: str,
    reports: dict[Key, list[Report]],
    by_id: dict[str, list[Key]],
    categories: Callable[[Key], Collection[str]],
) -> tuple[dict[Key, list[Decision]], dict[int, tuple[str, str]]]:
    """The valid decisions of a kind by failure, earliest first; and by its place in ``decisions`` each
    invalid one with what is wrong. ``categories``: those that a decision on this failure may name."""
    valid: dict[Key, list[Decision]] = defaultdict(list)
    invalid = {}
    for place, one in enumerate(decisions):
        if one.kind != kind:
            continue
        keys = by_id.get(one.failure, [])
        hashes = {report.sha256 for key in keys for report in reports[key] if report.sha256}
        # Where reports of two sources have the id, the hash tells which of them it is about.
        meant = [k for k in keys if any(r.sha256 == one.subject_sha256 for r in reports[k])]
        allowed = {category for key in meant or keys for category in categories(key)}
        problems = decision_problems(one, hashes if keys else None, allowed)
        if problems:
            invalid[place] = (one.id, "; ".join(problems))
            continue
        for key in meant:
            valid[key].append(one)
    for made in valid.values():
        made.sort(key=lambda one: (one.decided, one.id))
    return valid, invalid


def _categories(year: int | None, calendar: Calendar) -> set[str]:
    """Those of the terms of a year; of any version where that is none, or has none in force."""
    governing = None if year is None else calendar.governing(year)
    versions = calendar.book.versions if governing is None else [governing]
    return {
        category
        for version in versions
        for category in (version.fields.exclusion_categories if version.fields else None) or ()
    }


def _case(failure: Failure, key: Key, year: int | None, calendar: Calendar) -> Case:
    """A failure to place: it opens no group after the book's year, and none in a year without terms."""
    own = calendar.book.year
    if year is not None and (year > own or (year != own and calendar.governing(year) is None)):
        year = None
    return Case(failure=_known(failure, calendar.book.as_of), year=year, source=key[1])


def _year(
    failure: Failure, key: Key, sides: Sequence[Decision], calendar: Calendar
) -> tuple[int | None, str]:
    """The contract year a failure is put in, up to the one after the book's, and what keeps that from being
    told; None where no such year is known.

    Only where the clock leaves it open does a decision tell the side of the boundary. It moves a failure
    over a boundary of an earlier year too, where nothing of the book's year is left open.
    """
    year, doubt = calendar.year_of(failure.occurred), failure.clock_uncertainty_ms * MILLISECOND
    crossed = [
        boundary
        for boundary in (calendar.span.start, calendar.span.end)
        if abs(microseconds(boundary, failure.occurred)) < doubt
    ]
    if not crossed:
        return (_earlier(failure, sides, calendar, doubt) if sides else year), ""
    where = f"failures: {_named(key)} may lie on either side of"
    if len(crossed) > 1:
        return year, f"{where} both boundaries of the year, by its clock"
    at = crossed[0].isoformat().replace("+00:00", "Z")
    said = {one.category for one in sides}
    if not said:
        return year, f"{where} {at}, by its clock, and no boundary decision says which"
    if len(said) > 1:
        ids = ", ".join(sorted(one.id for one in sides))
        return year, f"decisions: {ids} put {_named(key)} on different sides of {at}"
    own = calendar.book.year
    if crossed[0] == calendar.span.start:
        return (own if said == {"after"} else own - 1 or None), ""
    if said == {"before"}:
        return own, ""
    return (own + 1 if calendar.continues() else None), ""


def _earlier(
    failure: Failure, sides: Sequence[Decision], calendar: Calendar, doubt: int
) -> int | None:
    """The year by a decision about a boundary before the book's year; the onset's where it tells none."""
    crossed = [
        year
        for year, begins in enumerate(calendar.starts[: calendar.book.year - 1], 1)
        if abs(microseconds(begins, failure.occurred)) < doubt
    ]
    said = {one.category for one in sides}
    if len(crossed) != 1 or len(said) != 1:
        return calendar.year_of(failure.occurred)
    return crossed[0] if said == {"after"} else crossed[0] - 1 or None


def _named(key: Key) -> str:
    return f"{key[0]} of {key[1]}" if key[1] else key[0]
