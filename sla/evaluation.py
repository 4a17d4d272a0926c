"""How a contract year stands: buckets that add up, whole numbers only, no rounded figure decides. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .states import Standing, Verdict


@dataclass(frozen=True)
class Line:
    """One failure of the year. ``category`` is set for excluded ones."""

    verdict: Verdict
    category: str = ""


@dataclass(frozen=True)
class Target:
    """Covered of qualifying must be at least ``numerator`` / ``denominator``."""

    numerator: int
    denominator: int


@dataclass(frozen=True, kw_only=True)
class Counts:
    """recorded = qualifying + excluded + unsupported + averted + merged + awaiting;
    qualifying = covered + missed."""

    recorded: int
    covered: int
    missed: int
    averted: int
    excluded: dict[str, int]
    unsupported: int
    merged: int
    awaiting: int

    @property
    def qualifying(self) -> int:
        return self.covered + self.missed

    @property
    def adds_up(self) -> bool:
        apart = self.unsupported + self.averted + self.merged + self.awaiting
        return self.recorded == self.qualifying + sum(self.excluded.values()) + apart


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What is known of the year at the instant of the evaluation.

    ``over``: its end has passed; ``grace_over``: so has the grace for late evidence. ``measured_bp``:
    share of the time in which the scope was measured, None while nobody measures it.
    """

    over: bool
    grace_over: bool
    measured_bp: int | None
    minimum_measured_bp: int | None
    blocked_by: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """``coverage_truncated``: per cent with two decimals, cut off; None for 0 of 0."""

    counts: Counts
    standing: Standing
    blocked_by: tuple[str, ...]
    coverage_truncated: str | None
    allowed_misses: int | None
    misses_left: int | None
    short_by: int | None
    credit_eligible: bool
    credit_reason: str


def counted(lines: Iterable[Line], *, grace_over: bool = False) -> Counts:
    """Count the lines. What is still awaiting when the grace is over was missed."""
    found: Counter[Verdict] = Counter()
    excluded: Counter[str] = Counter()
    for line in lines:
        late = grace_over and line.verdict == Verdict.AWAITING
        found[Verdict.MISSED if late else line.verdict] += 1
        if line.verdict == Verdict.EXCLUDED:
            excluded[line.category] += 1
    return Counts(
        recorded=found.total(),
        covered=found[Verdict.COVERED],
        missed=found[Verdict.MISSED],
        averted=found[Verdict.AVERTED],
        excluded=dict(sorted(excluded.items())),
        unsupported=found[Verdict.UNSUPPORTED],
        merged=found[Verdict.MERGED],
        awaiting=found[Verdict.AWAITING],
    )


def evaluated(lines: Iterable[Line], target: Target | None, moment: Moment) -> Evaluation:
    """Evaluate one year. Without a target in the terms it is blocked, and says so."""
    counts = counted(lines, grace_over=moment.grace_over)
    blocked_by = tuple(moment.blocked_by)
    if target is None and not blocked_by:
        blocked_by = ("terms: target is empty",)
    standing = _standing(counts, target, moment, blocked_by)
    eligible, reason = _credit(counts, target, standing)
    return Evaluation(
        counts=counts,
        standing=standing,
        blocked_by=blocked_by,
        coverage_truncated=coverage_truncated(counts.covered, counts.qualifying),
        allowed_misses=None if target is None else allowed_misses(counts.qualifying, target),
        misses_left=None
        if target is None
        else misses_left(counts.qualifying, counts.missed, target),
        short_by=None if target is None else short_by(counts.covered, counts.qualifying, target),
        credit_eligible=eligible,
        credit_reason=reason,
    )


def meets(covered: int, qualifying: int, target: Target) -> bool:
    """The test itself: covered * denominator >= numerator * qualifying."""
    return covered * target.denominator >= target.numerator * qualifying


def coverage_truncated(covered: int, qualifying: int) -> str | None:
    """93.75 for 150 of 160, cut off and never rounded up; None for 0 of 0."""
    if qualifying == 0:
        return None
    hundredths = covered * 10_000 // qualifying
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def allowed_misses(qualifying: int, target: Target) -> int:
    """How many of so many failures may be missed."""
    return (target.denominator - target.numerator) * qualifying // target.denominator


def misses_left(qualifying: int, missed: int, target: Target) -> int:
    """How many further failures may be missed, each of them qualifying, before the year is below."""
    room = (target.denominator - target.numerator) * qualifying - target.denominator * missed
    return max(0, room // target.numerator)


def short_by(covered: int, qualifying: int, target: Target) -> int:
    """How many of the missed would have had to be covered."""
    needed = -(-target.numerator * qualifying // target.denominator)
    return max(0, needed - covered)


def _standing(
    counts: Counts, target: Target | None, moment: Moment, blocked_by: tuple[str, ...]
) -> Standing:
    if moment.over and (moment.grace_over or not counts.awaiting):
        return _finished(counts, target, moment, blocked_by)
    if moment.over:
        return Standing.OPEN
    if target is None:
        return Standing.BLOCKED
    if not meets(counts.covered, counts.qualifying, target):
        return Standing.BELOW_TARGET
    left = misses_left(counts.qualifying, counts.missed, target)
    if counts.awaiting > left or (counts.missed and not left):
        return Standing.AT_RISK
    return Standing.ON_TARGET if counts.qualifying else Standing.NO_EVENTS


def _finished(
    counts: Counts, target: Target | None, moment: Moment, blocked_by: tuple[str, ...]
) -> Standing:
    if blocked_by or target is None:
        return Standing.BLOCKED
    if not meets(counts.covered, counts.qualifying, target):
        return Standing.SHORT
    # Nobody gains by not measuring: without enough measured time a year is never a pass.
    minimum = moment.minimum_measured_bp or 0
    if moment.measured_bp is None or moment.measured_bp < minimum:
        return Standing.INSUFFICIENT_DATA
    return Standing.MET if counts.qualifying else Standing.MET_NO_EVENTS


def _credit(counts: Counts, target: Target | None, standing: Standing) -> tuple[bool, str]:
    """Whether the credit is due, and why. It is due at the end of a short year, without a claim."""
    if standing == Standing.SHORT:
        assert target is not None
        missing = short_by(counts.covered, counts.qualifying, target)
        return True, (
            f"short by {missing}: {counts.covered} of {counts.qualifying} qualifying failures covered"
        )
    if standing == Standing.BELOW_TARGET:
        return False, "below target now; it is decided at the end of the year"
    if standing in (Standing.MET, Standing.MET_NO_EVENTS):
        return False, "the target was met"
    if standing == Standing.BLOCKED:
        return False, "the year cannot be decided before what blocks it is settled"
    if standing == Standing.OPEN:
        return False, "the grace for failures still awaiting a verdict is not over"
    if standing == Standing.INSUFFICIENT_DATA:
        return False, "too little was measured: two persons decide, with reasons"
    return False, "the year is running"
