"""Which failures are one: the later ones belong to the head of a group. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from .classification import Classified, Failure
from .states import Verdict
from .years import microseconds

MINUTE = 60_000_000
"""In microseconds."""

WORST = (Verdict.MISSED, Verdict.AWAITING, Verdict.COVERED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A failure to place. ``year``: the contract year of its onset, None where it may join a group and
    never open one. ``source``: who reported it, which with its id makes it known."""

    failure: Failure
    year: int | None
    source: str = ""

    @property
    def order(self) -> tuple[datetime, str, str]:
        """By onset; between equal ones by name."""
        return self.failure.occurred, self.failure.id, self.source


@dataclass(kw_only=True, slots=True)
class Placed:
    """A failure in the year it is counted in. A group has the year of its head, and its worst outcome."""

    case: Case
    year: int
    judged: Classified
    head: Placed | None = None
    joined_by: str = ""
    members: list[Placed] = field(default_factory=list)

    @property
    def worst(self) -> Placed:
        """The member that decides the verdict of the group; the head itself where it is as bad."""
        if not self.members:
            return self
        return min((self, *self.members), key=lambda one: WORST.index(one.judged.verdict))


@dataclass(kw_only=True)
class _Heads:
    """Heads that may still take members: by job, and by job and root cause; in order of onset.

    While a head takes what comes, nothing that comes opens a group beside it: the lists stay short.
    """

    unsteady: dict[str, list[Placed]] = field(default_factory=dict)
    recent: dict[tuple[str, str], list[Placed]] = field(default_factory=dict)


def grouped(
    cases: Iterable[Case],
    judge: Callable[[Case, int], Classified],
    window_minutes: Callable[[int], int | None],
) -> list[Placed]:
    """Place every case, by onset. One that fits two groups joins the earlier head; one that fits none is
    judged in its own year, and left out where it has none.

    ``judge`` says what a failure is when it is counted in a year; ``window_minutes`` is that of the year's
    terms, None where they leave it empty.
    """
    heads, placed = _Heads(), []
    for case in sorted(cases, key=lambda case: case.order):
        one = _joined(case, heads, judge, window_minutes)
        if one is None and case.year is not None:
            one = Placed(case=case, year=case.year, judged=judge(case, case.year))
            if one.judged.groups:
                heads.unsteady.setdefault(case.failure.job, []).append(one)
                cause = (case.failure.job, case.failure.root_cause)
                heads.recent.setdefault(cause, []).append(one)
        if one is not None:
            placed.append(one)
    return placed


def _joined(
    case: Case,
    heads: _Heads,
    judge: Callable[[Case, int], Classified],
    window_minutes: Callable[[int], int | None],
) -> Placed | None:
    """The case as a member of the earliest head it fits; None when it fits none."""
    failure = case.failure
    found: list[tuple[Placed, str]] = []
    unsteady = heads.unsteady.get(failure.job)
    if unsteady:
        unsteady[:] = [head for head in unsteady if _unsteady(head.case.failure, failure)]
        found += [(head, "before_steady") for head in unsteady]
    recent = heads.recent.get((failure.job, failure.root_cause))
    if recent:
        recent[:] = [
            head
            for head in recent
            if _recent(head.case.failure, failure, window_minutes(head.year))
        ]
        found += [(head, "same_cause") for head in recent]
    found.sort(key=lambda one: one[0].case.order)
    for head, way in found:
        judged = judge(case, head.year)
        if judged.groups:
            one = Placed(case=case, year=head.year, judged=judged, head=head, joined_by=way)
            head.members.append(one)
            return one
    return None


def fits(head: Case, later: Case, window: int | None) -> bool:
    """Whether the later one belongs to the first, were that a head. ``window``: minutes, None where the terms
    leave it empty."""
    first, failure = head.failure, later.failure
    if first.job != failure.job or head.order >= later.order:
        return False
    same_cause = first.root_cause == failure.root_cause
    return _unsteady(first, failure) or (same_cause and _recent(first, failure, window))


def _unsteady(head: Failure, failure: Failure) -> bool:
    return head.steady_at is not None and failure.occurred < head.steady_at


def _recent(head: Failure, failure: Failure, window: int | None) -> bool:
    apart = microseconds(head.occurred, failure.occurred)
    return window is not None and apart < window * MINUTE
