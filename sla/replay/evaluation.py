"""One contract year of a book: which terms govern, what falls into it, how it ends. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..classification import Classified, Rules, classified
from ..credit import Credit, CreditRules, credit_priced, orders_once
from ..evaluation import Evaluation, Line, Moment, Target, evaluated
from ..grouping import Case, Placed, fits, grouped
from ..states import Mechanism, Standing, Verdict
from ..terms import TermsFields
from ..years import Span, measured_bp, microseconds
from .book import Book, Version
from .calendar import DAY, Calendar, calendar_of, terms_problems
from .reports import Key, Recorded, recorded

_WAYS = {
    "before_steady": "the run had not passed the step at which that one happened",
    "same_cause": "the same root cause on the same job, within the window of that one",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureLine:
    """One failure of the year, by the rule that fired."""

    failure: str
    verdict: Verdict
    rule: str
    why: str
    category: str = ""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What is told of a year that has terms."""

    version: Version
    evaluation: Evaluation
    measured_bp: int | None
    minimum_measured_bp: int | None
    credit: Credit | None
    lines: Sequence[FailureLine]
    invalid_decisions: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class YearResult:
    """``outcome`` is one of open, blocked, short, insufficient_data, met_no_events, met. ``counted`` is None
    where no terms are in force at the first instant: ``recorded`` alone is known then."""

    book: Book
    span: Span
    recorded: int
    outcome: Standing
    blocked_by: tuple[str, ...]
    counted: Counted | None


def year_evaluated(book: Book) -> YearResult:
    """Evaluate the book's year as known at its ``as_of``. Raises FileRefused where it does not exist."""
    calendar = calendar_of(book)
    known = recorded(book, calendar)
    version = calendar.governing(book.year)
    over = book.as_of >= calendar.span.end
    if version is None:
        return YearResult(
            book=book,
            span=calendar.span,
            recorded=sum(case.year == book.year for case in known.cases),
            outcome=Standing.BLOCKED if over else Standing.OPEN,
            blocked_by=terms_problems(calendar, None),
            counted=None,
        )
    return _counted(book, calendar, known, version, over)


def _counted(
    book: Book, calendar: Calendar, known: Recorded, version: Version, over: bool
) -> YearResult:
    judge = _Judge(calendar, known)
    placed = [one for one in grouped(known.cases, judge, judge.window) if one.year == book.year]
    grace_over = judge.grace_over(book.year)
    lines = [_line(one, grace_over) for one in placed]
    fields = version.fields
    assert fields is not None
    share = measured_bp(book.measured, calendar.span, book.as_of)
    target = (
        Target(fields.target_numerator, fields.target_denominator)
        if fields.target_numerator and fields.target_denominator
        else None
    )
    evaluation = evaluated(
        [Line(line.verdict, line.category) for line in lines],
        target,
        Moment(
            over=over,
            grace_over=grace_over,
            measured_bp=share,
            minimum_measured_bp=fields.minimum_measured_bp,
            blocked_by=[
                *terms_problems(calendar, version),
                *known.problems_of(placed, _unsure(calendar, known, judge)),
                *_reversed_spans(book),
            ],
        ),
    )
    outcome, blocked_by, credit = _outcome(book, calendar, fields, evaluation, over)
    return YearResult(
        book=book,
        span=calendar.span,
        recorded=evaluation.counts.recorded,
        outcome=outcome,
        blocked_by=blocked_by,
        counted=Counted(
            version=version,
            evaluation=evaluation,
            measured_bp=share,
            minimum_measured_bp=fields.minimum_measured_bp,
            credit=credit,
            lines=lines,
            invalid_decisions=known.invalid_decisions,
        ),
    )


class _Judge:
    """What a failure is when it is counted in a year, by that year's terms and evidence cut-off."""

    def __init__(self, calendar: Calendar, known: Recorded) -> None:
        self._calendar, self._known = calendar, known
        self._rules: dict[int, Rules] = {}

    def __call__(self, case: Case, year: int) -> Classified:
        rules, failure = self._rules_of(year), case.failure
        if failure.resumed is not None and self._late(failure.resumed.recorded, year):
            failure = replace(failure, resumed=None)
        decisions = self._known.exclusions.get((failure.id, case.source), ())
        for decision in decisions:
            if decision.category in rules.exclusion_categories:
                why = f"decision {decision.id} of {decision.maker} and {decision.checker}: {decision.reason}"
                excluded = Classified(
                    verdict=Verdict.EXCLUDED, rule="decision", why=why, category=decision.category
                )
                return classified(failure, rules, excluded)
        return classified(failure, rules)

    def window(self, year: int) -> int | None:
        """The grouping window of a year, in minutes."""
        return self._fields(year).grouping_window_minutes

    def grace_over(self, year: int) -> bool:
        """Never where the terms do not say how long it is."""
        days, end = self._fields(year).grace_days, self._calendar.end_of(year)
        return days is not None and microseconds(end, self._calendar.book.as_of) >= days * DAY

    def _late(self, instant: datetime, year: int) -> bool:
        """After the cut-off, or after the grace: what that has made missed stays missed."""
        fields, end = self._fields(year), self._calendar.end_of(year)
        limits = (fields.evidence_cutoff_days, fields.grace_days)
        after = microseconds(end, instant)
        return any(days is not None and after > days * DAY for days in limits)

    def _fields(self, year: int) -> TermsFields:
        version = self._calendar.governing(year)
        assert version is not None
        assert version.fields is not None
        return version.fields

    def _rules_of(self, year: int) -> Rules:
        if year not in self._rules:
            fields = self._fields(year)
            self._rules[year] = Rules(
                mechanism=fields.mechanism or Mechanism.LIVE_MIGRATION,
                predicted_failures_count=bool(fields.predicted_failures_count),
                exclusion_categories=frozenset(fields.exclusion_categories or ()),
            )
        return self._rules[year]


def _unsure(calendar: Calendar, known: Recorded, judge: _Judge) -> set[Key]:
    """Contradicted reports that reach into the book's year: one of their contents has its onset in it, or
    would be the head of a failure that has its own in it."""
    here = calendar.book.year
    own: dict[str, list[Case]] = defaultdict(list)
    if known.contradicted:
        for case in known.cases:
            if case.year == here:
                own[case.failure.job].append(case)

    def heads(content: Case) -> bool:
        year = content.year
        if year is None or not judge(content, year).groups:
            return False
        window = judge.window(year)
        return any(
            fits(content, later, window) and judge(later, year).groups
            for later in own.get(content.failure.job, ())
        )

    return {
        key
        for key, contents in known.contradicted.items()
        if any(
            here in (one.year, calendar.year_of(one.failure.occurred)) or heads(one)
            for one in contents
        )
    }


def _line(one: Placed, grace_over: bool) -> FailureLine:
    failure = one.case.failure
    if one.head is not None:
        why = f"belongs to {one.head.case.failure.id}: {_WAYS[one.joined_by]}"
        return FailureLine(failure=failure.id, verdict=Verdict.MERGED, rule=one.joined_by, why=why)
    worst = one.worst
    verdict, rule, why = worst.judged.verdict, worst.judged.rule, worst.judged.why
    if worst is not one:
        why = f"{worst.case.failure.id}, which belongs to it: {why}"
    if grace_over and verdict == Verdict.AWAITING:
        verdict, rule, why = Verdict.MISSED, "grace_over", f"{why}, and the grace is over"
    return FailureLine(
        failure=failure.id, verdict=verdict, rule=rule, why=why, category=one.judged.category
    )


def _outcome(
    book: Book, calendar: Calendar, fields: TermsFields, evaluation: Evaluation, over: bool
) -> tuple[Standing, tuple[str, ...], Credit | None]:
    standing, blocked_by = evaluation.standing, evaluation.blocked_by
    if not over:
        return Standing.OPEN, blocked_by, None
    if standing == Standing.OPEN and fields.grace_days is None:
        # Nobody can say how long the grace is: it does not keep the year open.
        return Standing.BLOCKED, blocked_by, None
    if standing != Standing.SHORT:
        return standing, blocked_by, None
    cap = fields.credit_cap_minor
    rules = CreditRules(
        rate_bp=fields.credit_rate_bp or 0,
        base=fields.credit_base,
        cap_minor=cap if isinstance(cap, int) else None,
        rounding=fields.rounding,
        currency=book.currency,
    )
    orders, problems = orders_once(book.orders, book.as_of)
    credit, unclear = credit_priced(orders, rules, year=book.year, ended=calendar.span.end)
    if problems or unclear:
        return Standing.BLOCKED, (*blocked_by, *problems, *unclear), None
    return standing, blocked_by, credit


def _reversed_spans(book: Book) -> list[str]:
    return [
        f"measured_spans: number {n} ends before it begins"
        for n, span in enumerate(book.measured, 1)
        if span.end < span.start
    ]
