"""The decided points 1 to 7 of the file format, each on both sides of its boundaries."""

from __future__ import annotations

from typing import Any

import pytest

from .files import (
    Json,
    answer,
    counts,
    decision,
    evaluated,
    failure,
    file,
    missed,
    order,
    resumed,
    terms,
    verdicts,
)

END = "2027-01-01T00:00:00Z"
LAST = "2026-12-31T23:59:59.999999Z"


# --- 1: the buckets, in their order -------------------------------------------------------------------


def test_point_1_each_failure_is_in_one_bucket_and_the_sum_holds() -> None:
    excluded = failure("e")
    found = answer(
        failure("c"),
        missed("m"),
        failure("d", drill=True),
        failure("u", cause_class="user_code"),
        failure("s", protected=False),
        excluded,
        failure("p", predicted=True),
        failure("a", "2026-12-31T00:00:00Z", resumed=None),
        failure("g", job="job of c", root_cause="cause of c", occurred="2026-03-01T12:10:00Z"),
        decisions=[decision("D", excluded)],
        as_of="2027-01-02T00:00:00Z",
    )
    apart = {"drill": 1, "user_code": 1, "customer_cause": 1}
    assert found["excluded"] == apart
    assert (found["recorded"], found["qualifying"]) == (9, 2)
    assert counts(found) == {
        "covered": 1,
        "missed": 1,
        "averted": 1,
        "excluded": apart,
        "unsupported": 1,
        "merged": 1,
        "awaiting": 1,
    }


@pytest.mark.parametrize(
    ("fields", "excluded_too", "verdict", "rule"),
    [
        ({"drill": True, "cause_class": "user_code"}, True, "excluded", "drill"),
        ({"cause_class": "user_code", "protected": False}, True, "excluded", "user_code"),
        ({"protected": False, "predicted": True}, True, "unsupported", "not_protected"),
        ({"predicted": True, "cause_class": None}, True, "excluded", "decision"),
        ({"predicted": True, "cause_class": None}, False, "averted", "predicted"),
        ({"cause_class": None, "resumed": None}, False, "missed", "grace_over"),
        ({}, False, "covered", "nothing_lost"),
    ],
)
def test_point_1_the_first_bucket_that_fits(
    fields: Json, excluded_too: bool, verdict: str, rule: str
) -> None:
    one = failure("x", **fields)
    found = answer(one, decisions=[decision("D", one)] if excluded_too else [])
    assert [(line["verdict"], line["rule"]) for line in found["lines"]] == [(verdict, rule)]


# --- 2: the outcome -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("as_of", "outcome"), [(LAST, "open"), (END, "met_no_events")])
def test_point_2_a_year_is_open_up_to_its_end(as_of: str, outcome: str) -> None:
    assert answer(as_of=as_of)["outcome"] == outcome


@pytest.mark.parametrize(
    ("as_of", "outcome", "bucket"),
    [
        ("2027-01-30T23:59:59.999999Z", "open", {"awaiting": 1}),
        ("2027-01-31T00:00:00Z", "short", {"missed": 1}),
    ],
)
def test_point_2_the_grace_of_what_awaits_keeps_it_open(
    as_of: str, outcome: str, bucket: Json
) -> None:
    found = answer(failure("a", resumed=None), as_of=as_of)
    assert (found["outcome"], counts(found)) == (outcome, bucket)


def test_point_2_the_grace_keeps_no_year_open_in_which_nothing_awaits() -> None:
    assert answer(failure("c"), as_of=END)["outcome"] == "met"


def test_point_2_open_comes_before_blocked_and_blocked_before_short() -> None:
    silent = terms(rounding=None)
    assert answer(missed("m"), terms=silent, as_of=LAST)["outcome"] == "open"
    assert answer(missed("m"), terms=silent)["outcome"] == "blocked"
    assert answer(missed("m"))["outcome"] == "short"


@pytest.mark.parametrize("name", sorted(terms()))
@pytest.mark.parametrize("how", ["missing", None, ""])
def test_point_2_every_empty_field_of_the_terms_blocks_and_is_named(
    name: str, how: str | None
) -> None:
    silent = terms()
    if how == "missing":
        del silent[name]
    else:
        silent[name] = how
    found = answer(failure("c"), terms=silent)
    assert found["outcome"] == "blocked"
    assert any(name in problem for problem in found["blocked_by"])


@pytest.mark.parametrize("part", ["numerator", "denominator"])
def test_point_2_half_a_target_blocks(part: str) -> None:
    target = {"numerator": 9, "denominator": 10, part: None}
    found = answer(failure("c"), terms=terms(target=target))
    assert found["blocked_by"] == [f"terms version 1: target.{part} is empty"]
    assert (found["misses_left"], found["short_by"]) == (None, None)


def test_point_2_zero_and_false_are_values() -> None:
    zeros = {name: 0 for name, value in terms().items() if type(value) is int and name != "version"}
    zeros |= {"credit_cap_minor": 0, "credit_expiry_days": 0, "exclusion_categories": []}
    found = answer(failure("c"), terms=terms(**zeros, predicted_failures_count=False))
    assert (found["outcome"], found["blocked_by"]) == ("met", [])


HALF = [{"start": "2026-01-01T00:00:00Z", "end": "2026-07-02T12:00:00Z"}]


@pytest.mark.parametrize(
    ("failures", "minimum", "outcome"),
    [
        ([missed("m")], 5001, "short"),
        ([failure("c")], 5001, "insufficient_data"),
        ([], 5001, "insufficient_data"),
        ([failure("c")], 5000, "met"),
        ([], 5000, "met_no_events"),
    ],
)
def test_point_2_too_little_measured_is_never_a_pass_and_hides_no_short_year(
    failures: list[Json], minimum: int, outcome: str
) -> None:
    found = answer(
        *failures, measured_spans=HALF, terms=terms(minimum_measured_bp=minimum), as_of=END
    )
    assert (found["measured_bp"], found["outcome"]) == (5000, outcome)


def test_point_2_what_contradicts_itself_blocks() -> None:
    backwards = [{"start": "2026-03-02T00:00:00Z", "end": "2026-03-01T00:00:00Z"}]
    found = answer(failure("c"), measured_spans=backwards)
    assert found["blocked_by"] == ["measured_spans: number 1 ends before it begins"]
    above = terms(target={"numerator": 11, "denominator": 10})
    assert answer(terms=above)["blocked_by"] == ["terms version 1: target is above 1"]


# --- 3: boundaries of the year ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contract", "year", "start", "end"),
    [
        ({"zone": "Europe/Berlin"}, 1, "2025-12-31T23:00:00Z", "2026-12-31T23:00:00Z"),
        # Midnight does not exist on the first day.
        (
            {"start": "2018-11-04", "zone": "America/Sao_Paulo"},
            1,
            "2018-11-04T03:00:00Z",
            "2019-11-04T03:00:00Z",
        ),
        # Midnight exists twice on the first day.
        (
            {"start": "2018-10-28", "zone": "Atlantic/Azores"},
            1,
            "2018-10-28T00:00:00Z",
            "2019-10-28T01:00:00Z",
        ),
        ({"start": "2024-02-29"}, 1, "2024-02-29T00:00:00Z", "2025-02-28T00:00:00Z"),
        ({"start": "2024-02-29"}, 4, "2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"),
    ],
)
def test_point_3_a_year_begins_at_the_first_instant_of_its_local_day(
    contract: Json, year: int, start: str, end: str
) -> None:
    found = answer(contract=contract, year=year, terms=terms(effective_from="2010-01-01"))
    assert found["year"] == {"start_utc": start, "end_utc": end}


def test_point_3_the_leap_rule_says_where_29_february_goes() -> None:
    march = terms(effective_from="2024-02-29", leap_rule="mar_1")
    found = answer(contract={"start": "2024-02-29"}, year=2, terms=march)
    assert found["year"] == {
        "start_utc": "2025-03-01T00:00:00Z",
        "end_utc": "2026-03-01T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("occurred", "recorded"),
    [("2025-12-31T23:59:59.999999Z", 0), ("2026-01-01T00:00:00Z", 1), (LAST, 1), (END, 0)],
)
def test_point_3_a_failure_belongs_to_the_year_of_its_onset(occurred: str, recorded: int) -> None:
    assert answer(failure("c", occurred))["recorded"] == recorded


# --- 4: grace and cut-off -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "verdict"),
    [("2027-01-31T00:00:00Z", "covered"), ("2027-01-31T00:00:00.000001Z", "missed")],
)
def test_point_4_evidence_after_the_cut_off_counts_as_absent(at: str, verdict: str) -> None:
    assert verdicts(answer(failure("x", resumed=resumed(recorded=at)))) == {"x": verdict}


def test_point_4_late_evidence_awaits_while_the_grace_runs() -> None:
    short_cut = terms(evidence_cutoff_days=1)
    late = failure("x", resumed=resumed(recorded="2027-01-02T00:00:00.000001Z"))
    found = answer(late, terms=short_cut, as_of="2027-01-05T00:00:00Z")
    assert (found["outcome"], verdicts(found)) == ("open", {"x": "awaiting"})


@pytest.mark.parametrize(
    ("recorded", "verdict"),
    [("2027-01-11T00:00:00Z", "covered"), ("2027-01-11T00:00:00.000001Z", "missed")],
)
@pytest.mark.parametrize("cut_off", [30, None])
def test_point_4_what_the_grace_has_made_missed_stays_missed(
    recorded: str, verdict: str, cut_off: int | None
) -> None:
    short = terms(grace_days=10, evidence_cutoff_days=cut_off)
    one = failure("x", resumed=resumed(recorded=recorded))
    for day in ("14", "31"):
        found = answer(one, terms=short, as_of=f"2027-01-{day}T00:00:00Z")
        assert verdicts(found) == {"x": verdict}


def test_point_4_a_longer_grace_does_not_move_the_cut_off() -> None:
    long = terms(grace_days=40, evidence_cutoff_days=10)
    late = failure("x", resumed=resumed(recorded="2027-01-11T00:00:00.000001Z"))
    assert verdicts(answer(late, terms=long)) == {"x": "missed"}


def test_point_4_both_run_from_the_termination_of_a_terminated_contract() -> None:
    ended = {"terminated": "2026-07-01T00:00:00Z"}
    at = "2026-07-31T00:00:00.000001Z"
    found = answer(failure("x", resumed=resumed(recorded=at)), contract=ended)
    assert verdicts(found) == {"x": "missed"}


def test_point_4_spans_of_days_beyond_any_calendar_are_compared_not_added() -> None:
    long = terms(grace_days=10**30, evidence_cutoff_days=10**30, grouping_window_minutes=10**30)
    found = answer(failure("x", resumed=None), terms=long)
    assert (found["outcome"], counts(found)) == ("open", {"awaiting": 1})


# --- 6: predicted -------------------------------------------------------------------------------------

COUNTING = terms(predicted_failures_count=True)


@pytest.mark.parametrize(
    ("how", "averted_as", "counted_as"),
    [
        (resumed(), "averted", "covered"),
        (resumed(recomputed_committed_steps=1), "missed", "missed"),
        (resumed(mechanism="restart_in_place"), "missed", "missed"),
        (None, "awaiting", "awaiting"),
    ],
)
def test_point_6_predicted_and_nothing_lost_is_averted_or_counted_as_the_terms_say(
    how: Json | None, averted_as: str, counted_as: str
) -> None:
    one = failure("x", predicted=True, resumed=how)
    as_of = "2027-01-02T00:00:00Z"
    assert verdicts(answer(one, as_of=as_of)) == {"x": averted_as}
    assert verdicts(answer(one, as_of=as_of, terms=COUNTING)) == {"x": counted_as}


# --- 7: covered ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        {"next_committed_step": 10},
        {"next_committed_step": 12},
        {"recomputed_committed_steps": 1},
        {"checkpoint_read": True},
        {"digests_equal": False},
        {"mechanism": "path_failover"},
    ],
)
def test_point_7_each_loss_alone_is_a_miss(loss: dict[str, Any]) -> None:
    assert verdicts(answer(failure("x", resumed=resumed(**loss)))) == {"x": "missed"}
    assert verdicts(answer(failure("x"))) == {"x": "covered"}


def test_point_7_the_mechanism_counts_only_where_the_terms_require_it() -> None:
    moved = failure("x", resumed=resumed(mechanism="restart_in_place"))
    free = terms(mechanism="outcome_only")
    assert verdicts(answer(moved, terms=free)) == {"x": "covered"}
    read = failure("x", resumed=resumed(mechanism="restart_in_place", checkpoint_read=True))
    assert verdicts(answer(read, terms=free)) == {"x": "missed"}


def test_the_order_of_the_file_changes_nothing() -> None:
    failures = [failure("a"), missed("b"), failure("c", drill=True)]
    orders = [order("1"), order("2", amount_minor=7)]
    data = file(*failures, orders=orders)
    turned = data | {"failures": failures[::-1], "orders": orders[::-1]}
    assert evaluated(data) == evaluated(turned)
