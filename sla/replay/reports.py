"""What is known of a book at its ``as_of``: each failure once, and the decisions that count. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..classification import Failure
from ..decisions import Decision, decision_problems
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
    ``contradicted``: reports of one name with different contents, and whether an onset is in the year."""

    cases: Sequence[Case]
    exclusions: dict[Key, list[Decision]]
    invalid_decisions: Sequence[tuple[str, str]]
    contradicted: dict[Key, bool]
    problems: Sequence[str]

    def problems_of(self, placed: Iterable[Placed]) -> list[str]:
        """What keeps the year from being decided, given the failures that are counted in it."""
        keys = {(one.case.failure.id, one.case.source) for one in placed}
        found = [
            f"failures: {_named(key)} was reported with different contents"
            for key, in_year in sorted(self.contradicted.items())
            if in_year or key in keys
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
    contradicted = {
        key: any(calendar.year_of(one.failure.occurred) == book.year for one in same)
        for key, same in reports.items()
        if len(same) > 1 and any(one.failure != same[0].failure for one in same)
    }
    decisions, problems = _decisions(book)
    sides, exclusions, invalid = _sorted(decisions, reports, calendar)
    cases = []
    for key, same in reports.items():
        # Of contradicting reports the first recorded one is counted; the year is blocked anyway.
        failure = same[0].failure
        if key in contradicted:
            failure = min((one.failure for one in same), key=lambda one: (one.recorded, repr(one)))
        year, problem = _year(failure, key, sides.get(key, []), calendar)
        problems += [problem] if problem else []
        if year not in (None, calendar.book.year) and calendar.governing(year) is None:
            year = None
        cases.append(Case(failure=_known(failure, book.as_of), year=year, source=key[1]))
    return Recorded(
        cases=cases,
        exclusions=exclusions,
        invalid_decisions=invalid,
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


def _sorted(
    decisions: Iterable[Decision], reports: dict[Key, list[Report]], calendar: Calendar
) -> tuple[dict[Key, list[Decision]], dict[Key, list[Decision]], list[tuple[str, str]]]:
    """Valid boundary decisions, valid exclusions, and the invalid ones with what is wrong."""
    decisions = list(decisions)
    asked = {one.failure for one in decisions}
    by_id: dict[str, list[Key]] = defaultdict(list)
    for key in reports:
        if key[0] in asked:
            by_id[key[0]].append(key)
    sides: dict[Key, list[Decision]] = defaultdict(list)
    exclusions: dict[Key, list[Decision]] = defaultdict(list)
    invalid = []
    for one in decisions:
        same_id = [report for key in by_id[one.failure] for report in reports[key]]
        hashes = {report.sha256 for report in same_id if report.sha256} if same_id else None
        problems = decision_problems(one, hashes, _categories(same_id, calendar))
        if problems:
            invalid.append((one.id, "; ".join(problems)))
            continue
        for key in by_id[one.failure]:
            if any(report.sha256 == one.subject_sha256 for report in reports[key]):
                (exclusions if one.kind == "exclude" else sides)[key].append(one)
    for valid in exclusions.values():
        valid.sort(key=lambda one: (one.decided, one.id))
    return sides, exclusions, invalid


def _categories(reports: Iterable[Report], calendar: Calendar) -> set[str]:
    """Those of the terms of the failure's year; of any version where it lies in no year up to the book's."""
    found: set[str] = set()
    for report in reports:
        year = calendar.year_of(report.failure.occurred)
        governing = None if year is None else calendar.governing(year)
        versions = calendar.book.versions if governing is None else [governing]
        for version in versions:
            fields = version.fields
            found.update((fields.exclusion_categories if fields else None) or ())
    return found


def _year(
    failure: Failure, key: Key, sides: Sequence[Decision], calendar: Calendar
) -> tuple[int | None, str]:
    """The contract year a failure's onset lies in, and what keeps that from being told.

    Only where the clock leaves it open does a decision tell the side of the boundary.
    """
    year, doubt = calendar.year_of(failure.occurred), failure.clock_uncertainty_ms * MILLISECOND
    crossed = [
        boundary
        for boundary in (calendar.span.start, calendar.span.end)
        if abs(microseconds(boundary, failure.occurred)) < doubt
    ]
    if not crossed:
        return year, ""
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
    return (own if said == {"before"} else None), ""


def _named(key: Key) -> str:
    return f"{key[0]} of {key[1]}" if key[1] else key[0]
