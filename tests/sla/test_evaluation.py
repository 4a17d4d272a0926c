"""The year's arithmetic against an oracle that counts one by one, in fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla.evaluation import (
    Evaluation,
    Line,
    Moment,
    Target,
    allowed_misses,
    counted,
    coverage_truncated,
    evaluated,
    meets,
    misses_left,
    short_by,
)
from sla.states import Standing, Verdict

NINETY = Target(90, 100)
RUNNING = Moment(over=False, grace_over=False, measured_bp=None, minimum_measured_bp=9500)
OVER = Moment(over=True, grace_over=True, measured_bp=10_000, minimum_measured_bp=9500)

targets = st.tuples(st.integers(1, 200), st.integers(1, 200)).map(
    lambda pair: Target(min(pair), max(pair))
)
counts = st.tuples(st.integers(0, 300), st.integers(0, 300))


def lines(covered: int = 0, missed: int = 0, awaiting: int = 0, averted: int = 0) -> list[Line]:
    return (
        [Line(Verdict.COVERED)] * covered
        + [Line(Verdict.MISSED)] * missed
        + [Line(Verdict.AWAITING)] * awaiting
        + [Line(Verdict.AVERTED)] * averted
    )


def holds(covered: int, qualifying: int, target: Target) -> bool:
    """The promise, said in fractions."""
    if qualifying == 0:
        return True
    return Fraction(covered, qualifying) >= Fraction(target.numerator, target.denominator)


@given(counts, targets)
def test_the_test_is_exact(pair: tuple[int, int], target: Target) -> None:
    covered, missed = pair
    assert meets(covered, covered + missed, target) == holds(covered, covered + missed, target)


@given(counts, targets.filter(lambda t: t.numerator * 50 >= t.denominator))
def test_misses_left_is_what_can_still_be_missed(pair: tuple[int, int], target: Target) -> None:
    covered, missed = pair
    further = 0
    while holds(covered, covered + missed + further + 1, target):
        further += 1
    assert misses_left(covered + missed, missed, target) == further


@given(st.integers(0, 400), targets)
def test_allowed_misses_is_the_most_of_so_many(qualifying: int, target: Target) -> None:
    most = max(m for m in range(qualifying + 1) if holds(qualifying - m, qualifying, target))
    assert allowed_misses(qualifying, target) == most


@given(counts, targets)
def test_short_by_is_the_fewest_that_would_have_had_to_be_covered(
    pair: tuple[int, int], target: Target
) -> None:
    covered, missed = pair
    fewest = next(k for k in range(missed + 1) if holds(covered + k, covered + missed, target))
    assert short_by(covered, covered + missed, target) == fewest


@given(counts)
def test_coverage_is_cut_off_and_never_rounded_up(pair: tuple[int, int]) -> None:
    covered, missed = pair
    text = coverage_truncated(covered, covered + missed)
    if text is None:
        assert covered + missed == 0
        return
    exact = Fraction(100 * covered, covered + missed)
    assert Fraction(text) <= exact < Fraction(text) + Fraction(1, 100)


@given(st.lists(st.sampled_from(list(Verdict)), max_size=60), st.booleans())
def test_every_failure_is_in_exactly_one_bucket(verdicts: list[Verdict], late: bool) -> None:
    found = counted([Line(v, "drill") for v in verdicts], grace_over=late)
    assert found.adds_up
    assert found.recorded == len(verdicts)
    assert found.qualifying == found.covered + found.missed
    assert not (late and found.awaiting)


def test_exclusions_are_counted_by_category() -> None:
    found = counted([Line(Verdict.EXCLUDED, "drill"), Line(Verdict.EXCLUDED, "user_code")] * 2)
    assert found.excluded == {"drill": 2, "user_code": 2}


def standing(moment: Moment, **kinds: int) -> Standing:
    return evaluated(lines(**kinds), NINETY, moment).standing


@pytest.mark.parametrize(
    ("kinds", "is_now"),
    [
        ({}, Standing.NO_EVENTS),
        ({"averted": 3}, Standing.NO_EVENTS),
        ({"covered": 1}, Standing.ON_TARGET),
        ({"covered": 150, "missed": 10}, Standing.ON_TARGET),
        ({"covered": 9, "missed": 1}, Standing.AT_RISK),
        ({"covered": 150, "missed": 10, "awaiting": 6}, Standing.ON_TARGET),
        ({"covered": 150, "missed": 10, "awaiting": 7}, Standing.AT_RISK),
        ({"covered": 8, "missed": 1}, Standing.BELOW_TARGET),
        ({"missed": 1}, Standing.BELOW_TARGET),
    ],
)
def test_how_a_running_year_stands(kinds: dict[str, int], is_now: Standing) -> None:
    assert standing(RUNNING, **kinds) == is_now


@pytest.mark.parametrize(
    ("kinds", "ended_as"),
    [
        ({}, Standing.MET_NO_EVENTS),
        ({"covered": 9, "missed": 1}, Standing.MET),
        ({"covered": 8, "missed": 1}, Standing.SHORT),
        ({"covered": 9, "awaiting": 1}, Standing.MET),
        ({"covered": 8, "awaiting": 1}, Standing.SHORT),
    ],
)
def test_how_a_finished_year_ended(kinds: dict[str, int], ended_as: Standing) -> None:
    assert standing(OVER, **kinds) == ended_as


def test_a_year_stays_open_until_the_grace_of_what_awaits_is_over() -> None:
    in_grace = Moment(over=True, grace_over=False, measured_bp=10_000, minimum_measured_bp=0)
    assert standing(in_grace, covered=9, awaiting=1) == Standing.OPEN
    assert standing(in_grace, covered=9) == Standing.MET


@pytest.mark.parametrize("measured", [None, 9499])
def test_too_little_measured_is_never_a_pass_and_never_hides_a_short_year(
    measured: int | None,
) -> None:
    moment = Moment(over=True, grace_over=True, measured_bp=measured, minimum_measured_bp=9500)
    assert standing(moment, covered=10) == Standing.INSUFFICIENT_DATA
    assert standing(moment) == Standing.INSUFFICIENT_DATA
    assert standing(moment, covered=8, missed=1) == Standing.SHORT


def test_what_blocks_a_finished_year_is_named() -> None:
    moment = Moment(
        over=True,
        grace_over=True,
        measured_bp=10_000,
        minimum_measured_bp=0,
        blocked_by=["terms: rounding is empty"],
    )
    year = evaluated(lines(missed=1), NINETY, moment)
    assert (year.standing, year.blocked_by) == (Standing.BLOCKED, ("terms: rounding is empty",))
    assert not year.credit_eligible


def test_terms_without_a_target_block() -> None:
    year = evaluated(lines(covered=3), None, RUNNING)
    assert (year.standing, year.blocked_by) == (Standing.BLOCKED, ("terms: target is empty",))
    assert (year.misses_left, year.allowed_misses, year.short_by) == (None, None, None)


def ended(**kinds: int) -> Evaluation:
    return evaluated(lines(**kinds), NINETY, OVER)


def test_the_credit_is_due_for_a_short_year_and_says_why() -> None:
    year = ended(covered=125, missed=17)
    assert year.coverage_truncated == "88.02"
    assert (year.short_by, year.credit_eligible) == (3, True)
    assert year.credit_reason == "short by 3: 125 of 142 qualifying failures covered"


def test_exactly_ninety_per_cent_is_met_and_one_fewer_is_not() -> None:
    assert not ended(covered=90, missed=10).credit_eligible
    assert ended(covered=89, missed=10).credit_eligible


def test_a_running_year_owes_no_credit_yet() -> None:
    year = evaluated(lines(missed=5), NINETY, RUNNING)
    assert (year.credit_eligible, year.credit_reason) == (
        False,
        "below target now; it is decided at the end of the year",
    )


def test_the_figures_of_the_pages_example() -> None:
    year = evaluated(lines(covered=150, missed=10), NINETY, RUNNING)
    assert (year.coverage_truncated, year.allowed_misses, year.misses_left) == ("93.75", 16, 6)
