"""Point 5: which failures are one, on both sides of every boundary."""

from __future__ import annotations

import pytest

from .files import (
    LOST,
    Json,
    answer,
    counts,
    decision,
    failure,
    missed,
    resumed,
    terms,
    verdicts,
)

HEAD = "2026-03-01T12:00:00Z"
STEADY = "2026-03-01T13:00:00Z"
WINDOW_ENDS = "2026-03-01T12:30:00Z"


def on_llm(name: str, occurred: str = HEAD, **changed: object) -> Json:
    return failure(name, occurred, **{"job": "llm", **changed})


@pytest.mark.parametrize(
    ("occurred", "verdict"),
    [("2026-03-01T12:59:59.999999Z", "merged"), (STEADY, "covered"), (HEAD, "merged")],
)
def test_point_5_before_the_head_is_steady_any_cause_on_its_job_joins(
    occurred: str, verdict: str
) -> None:
    found = answer(on_llm("a", steady_at=STEADY), on_llm("b", occurred))
    assert verdicts(found) == {"a": "covered", "b": verdict}


def test_point_5_another_job_never_joins() -> None:
    found = answer(
        on_llm("a", steady_at=STEADY, root_cause="r"), failure("b", HEAD, root_cause="r")
    )
    assert counts(found) == {"covered": 2}


@pytest.mark.parametrize(
    ("occurred", "cause", "verdict"),
    [
        ("2026-03-01T12:29:59.999999Z", "r", "merged"),
        (WINDOW_ENDS, "r", "covered"),
        ("2026-03-01T12:29:59.999999Z", "other", "covered"),
        (HEAD, "r", "merged"),
    ],
)
@pytest.mark.parametrize("steady_at", [None, HEAD])
def test_point_5_within_the_window_the_same_root_cause_joins(
    occurred: str, cause: str, verdict: str, steady_at: str | None
) -> None:
    found = answer(
        on_llm("a", steady_at=steady_at, root_cause="r"), on_llm("b", occurred, root_cause=cause)
    )
    assert verdicts(found) == {"a": "covered", "b": verdict}


def test_point_5_a_window_of_no_minutes_joins_nothing() -> None:
    pair = [on_llm("a", root_cause="r"), on_llm("b", root_cause="r")]
    assert counts(answer(*pair, terms=terms(grouping_window_minutes=0))) == {"covered": 2}


def test_point_5_the_window_runs_from_the_onset_of_the_head_alone() -> None:
    times = ["12:00:00", "12:20:00", "12:40:00"]
    found = answer(
        *(on_llm(f"{n}", f"2026-03-01T{at}Z", root_cause="r") for n, at in enumerate(times))
    )
    assert verdicts(found) == {"0": "covered", "1": "merged", "2": "covered"}


def test_point_5_what_fits_two_groups_joins_the_earlier_head() -> None:
    first = on_llm("a", root_cause="r", steady_at=None)
    second = on_llm("b", "2026-03-01T12:10:00Z", root_cause="s", steady_at=STEADY)
    both = on_llm("c", "2026-03-01T12:20:00Z", root_cause="r", resumed=resumed(**LOST))
    found = answer(first, second, both)
    assert verdicts(found) == {"a": "missed", "b": "covered", "c": "merged"}
    alone = answer(first, second, both | {"root_cause": "t"})
    assert verdicts(alone) == {"a": "covered", "b": "missed", "c": "merged"}


@pytest.mark.parametrize(
    ("head", "member", "group"),
    [
        ({}, LOST, "missed"),
        (LOST, {}, "missed"),
        ({}, None, "awaiting"),
        (None, LOST, "missed"),
        ({}, {}, "covered"),
    ],
)
def test_point_5_a_group_has_its_worst_outcome(
    head: Json | None, member: Json | None, group: str
) -> None:
    how = [None if one is None else resumed(**one) for one in (head, member)]
    found = answer(
        on_llm("a", steady_at=STEADY, resumed=how[0]),
        on_llm("b", "2026-03-01T12:10:00Z", resumed=how[1]),
        as_of="2027-01-02T00:00:00Z",
    )
    assert verdicts(found) == {"a": group, "b": "merged"}


def test_point_5_a_member_that_still_awaits_after_the_grace_makes_the_group_missed() -> None:
    found = answer(on_llm("a", steady_at=STEADY), on_llm("b", resumed=None))
    assert verdicts(found) == {"a": "missed", "b": "merged"}


@pytest.mark.parametrize(
    "apart",
    [{"drill": True}, {"cause_class": "user_code"}, {"protected": False}, {"predicted": True}],
)
def test_point_5_what_stands_apart_absorbs_nothing_and_joins_nothing(apart: Json) -> None:
    """A drill whose run never got steady again must not swallow the real failure after it."""
    first = on_llm("a", steady_at=STEADY, root_cause="r", **apart)
    later = on_llm("b", "2026-03-01T12:10:00Z", root_cause="r", resumed=resumed(**LOST))
    assert verdicts(answer(first, later))["b"] == "missed"
    head = on_llm("a", steady_at=STEADY, root_cause="r")
    found = answer(head, on_llm("b", "2026-03-01T12:10:00Z", root_cause="r", **apart))
    assert verdicts(found)["b"] in ("excluded", "unsupported", "averted")


def test_point_5_an_excluded_failure_absorbs_nothing() -> None:
    first = on_llm("a", steady_at=STEADY)
    found = answer(
        first, missed("b", "2026-03-01T12:10:00Z", job="llm"), decisions=[decision("D", first)]
    )
    assert verdicts(found) == {"a": "excluded", "b": "missed"}


def test_point_5_a_counted_predicted_failure_groups_like_any_other() -> None:
    first = on_llm("a", steady_at=STEADY, predicted=True)
    found = answer(
        first, on_llm("b", "2026-03-01T12:10:00Z"), terms=terms(predicted_failures_count=True)
    )
    assert verdicts(found) == {"a": "covered", "b": "merged"}


def test_point_5_a_group_over_the_end_of_a_year_is_counted_in_the_year_of_its_head() -> None:
    head = on_llm("a", "2026-12-31T23:59:00Z", steady_at="2027-01-01T01:00:00Z")
    later = on_llm("b", "2027-01-01T00:30:00Z", resumed=resumed(**LOST))
    first = answer(head, later)
    assert (first["recorded"], verdicts(first)) == (2, {"a": "missed", "b": "merged"})
    second = answer(head, later, year=2, as_of="2028-06-01T00:00:00Z")
    assert (second["recorded"], second["lines"]) == (0, [])
    alone = answer(later, year=2, as_of="2028-06-01T00:00:00Z")
    assert verdicts(alone) == {"b": "missed"}


def test_point_5_a_member_after_the_termination_is_counted_with_its_head() -> None:
    head = on_llm("a", "2026-06-30T23:00:00Z", steady_at="2026-07-01T01:00:00Z")
    later = on_llm("b", "2026-07-01T00:30:00Z", resumed=resumed(**LOST))
    ended = {"terminated": "2026-07-01T00:00:00Z"}
    assert verdicts(answer(head, later, contract=ended)) == {"a": "missed", "b": "merged"}
    assert verdicts(answer(later, contract=ended)) == {}


def test_point_5_what_came_before_the_contract_hides_nothing_in_it() -> None:
    before = on_llm("a", "2025-12-31T23:00:00Z", steady_at="2026-01-01T02:00:00Z")
    found = answer(before, missed("b", "2026-01-01T01:00:00Z", job="llm"))
    assert verdicts(found) == {"b": "missed"}


def test_point_5_eight_devices_that_fail_together_are_one_failure() -> None:
    eight = [on_llm(f"gpu{n}", root_cause="node-b", steady_at=STEADY) for n in range(8)]
    assert counts(answer(*eight)) == {"covered": 1, "merged": 7}


def test_point_5_equal_onsets_take_the_first_name_as_head() -> None:
    found = answer(on_llm("b", steady_at=STEADY), on_llm("a", steady_at=STEADY))
    assert verdicts(found) == {"a": "covered", "b": "merged"}
