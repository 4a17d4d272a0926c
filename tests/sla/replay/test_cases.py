"""The known hard cases of a yearly guarantee that a file can decide, each with its number."""

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
    order,
    resumed,
    terms,
    verdicts,
)


def many(covered: int, lost: int) -> list[Json]:
    return [failure(f"c{n}") for n in range(covered)] + [missed(f"m{n}") for n in range(lost)]


def test_case_1_no_failure_is_no_full_coverage_and_needs_measured_time() -> None:
    found = answer()
    assert (found["outcome"], found["coverage_truncated"]) == ("met_no_events", None)
    blind = answer(measured_spans=[], terms=terms(minimum_measured_bp=1))
    assert (blind["outcome"], blind["credit"]) == ("insufficient_data", None)


@pytest.mark.parametrize(("lost", "outcome"), [(10, "met"), (11, "short")])
def test_case_2_exactly_ninety_per_cent_is_met(lost: int, outcome: str) -> None:
    assert answer(*many(100 - lost, lost))["outcome"] == outcome


@pytest.mark.parametrize(
    ("covered", "qualifying", "shown"),
    [(188, 209, "89.95"), (26, 29, "89.65"), (899, 999, "89.98")],
)
def test_case_3_what_rounds_up_to_ninety_is_short(
    covered: int, qualifying: int, shown: str
) -> None:
    found = answer(*many(covered, qualifying - covered))
    assert (found["coverage_truncated"], found["outcome"]) == (shown, "short")
    assert found["short_by"] == 1


@pytest.mark.parametrize(
    ("number", "allowed"), [(1, 0), (9, 0), (10, 1), (19, 1), (20, 2), (29, 2)]
)
def test_case_4_a_small_year_is_judged_as_written(number: int, allowed: int) -> None:
    assert answer(*many(number - allowed, allowed))["outcome"] == "met"
    assert answer(*many(number - allowed - 1, allowed + 1))["outcome"] == "short"


def test_case_5_a_failure_over_the_boundary_belongs_to_the_year_of_its_onset() -> None:
    over = failure(
        "x", "2026-12-31T23:59:59Z", resumed=resumed(recorded="2027-01-01T00:10:00Z", **LOST)
    )
    assert answer(over)["outcome"] == "short"
    assert answer(over, year=2, as_of="2028-06-01T00:00:00Z")["outcome"] == "met_no_events"


@pytest.mark.parametrize(
    ("as_of", "outcome"), [("2027-01-15T00:00:00Z", "open"), ("2027-02-15T00:00:00Z", "short")]
)
def test_case_6_what_is_open_at_the_close_counts_against_us_after_the_grace(
    as_of: str, outcome: str
) -> None:
    assert answer(failure("x", resumed=None), as_of=as_of)["outcome"] == outcome


def test_case_9_terms_amended_in_the_middle_of_a_year_wait_for_the_next() -> None:
    easy = terms(version=2, effective_from="2026-06-01", target={"numerator": 1, "denominator": 2})
    assert answer(failure("c"), missed("m"), terms=[terms(), easy])["outcome"] == "short"


def test_case_10_a_terminated_year_is_evaluated_up_to_the_termination() -> None:
    early = {"terminated": "2026-04-01T00:00:00Z"}
    pair = [missed("m"), failure("later", "2026-04-01T00:00:00Z")]
    found = answer(*pair, contract=early, orders=[order("O")])
    assert (found["recorded"], found["outcome"]) == (1, "short")
    assert found["credit"]["amount_minor"] == 25_000


def test_case_11_the_target_of_a_part_year_is_not_prorated() -> None:
    early = {"terminated": "2026-04-01T00:00:00Z"}
    assert answer(*many(9, 1), contract=early)["outcome"] == "met"
    assert answer(*many(8, 1), contract=early)["outcome"] == "short"


def test_case_12_the_credit_is_due_before_its_renewal_is_known() -> None:
    base = terms(credit_base="next_renewal")
    before = answer(missed("m"), terms=base)["credit"]
    assert (before["state"], before["basis_points"], before["amount_minor"]) == (
        "unpriced",
        2500,
        None,
    )


def test_case_13_an_expansion_is_a_base_only_where_the_terms_say_so() -> None:
    small = order("e", kind="expansion", signed="2027-01-05T00:00:00Z", amount_minor=300_000)
    states = {
        base: answer(missed("m"), orders=[small], terms=terms(credit_base=base))["credit"]["state"]
        for base in ("next_renewal", "first_of_renewal_or_expansion")
    }
    assert states == {"next_renewal": "unpriced", "first_of_renewal_or_expansion": "priced"}


@pytest.mark.parametrize(("currency", "fees", "amount"), [("JPY", 10, 3), ("BHD", 1001, 250)])
def test_case_16_amounts_are_whole_minor_units_of_any_currency(
    currency: str, fees: int, amount: int
) -> None:
    found = answer(
        missed("m"),
        contract={"currency": currency},
        orders=[order("O", currency=currency, amount_minor=fees)],
    )["credit"]
    assert (found["currency"], found["amount_minor"]) == (currency, amount)


def test_case_17_a_quarter_of_1000_10_is_250_03() -> None:
    credit = answer(missed("m"), orders=[order("O", amount_minor=100_010)])["credit"]
    assert credit["amount_minor"] == 25_003


def test_case_18_nothing_is_converted() -> None:
    euros = order("r", kind="renewal", signed="2027-02-01T00:00:00Z", currency="EUR")
    found = answer(missed("m"), orders=[euros], terms=terms(credit_base="next_renewal"))
    assert found["credit"]["state"] == "unpriced"


@pytest.mark.parametrize(
    ("zone", "day", "start"),
    [
        ("Africa/Cairo", "2024-04-26", "2024-04-25T22:00:00Z"),
        ("Asia/Beirut", "2025-03-30", "2025-03-29T22:00:00Z"),
    ],
)
def test_case_19_a_midnight_that_does_not_exist_is_the_first_instant_after(
    zone: str, day: str, start: str
) -> None:
    found = answer(contract={"zone": zone, "start": day}, terms=terms(effective_from=day))
    assert found["year"]["start_utc"] == start


@pytest.mark.parametrize(
    ("year", "start"), [(1, "2024-02-29"), (2, "2025-02-28"), (4, "2027-02-28"), (5, "2028-02-29")]
)
def test_case_20_29_february_is_anchored_to_the_original_date(year: int, start: str) -> None:
    since = terms(effective_from="2024-02-29")
    found = answer(contract={"start": "2024-02-29"}, year=year, terms=since)
    assert found["year"]["start_utc"] == f"{start}T00:00:00Z"


def test_case_21_eight_gpus_of_one_node_are_one_failure() -> None:
    eight = [missed(f"{n}", job="llm", root_cause="node-b", steady_at=None) for n in range(8)]
    assert counts(answer(*eight)) == {"missed": 1, "merged": 7}


def test_case_22_one_node_under_two_runs_is_two_failures() -> None:
    two = [failure(name, job=name, root_cause="node-b") for name in "ab"]
    assert counts(answer(*two)) == {"covered": 2}


def test_case_23_duplicates_count_once_and_never_merge_over_months() -> None:
    assert answer(failure("x"), failure("x"))["recorded"] == 1
    same = {"job": "llm", "root_cause": "node-b", "steady_at": None}
    months = [failure("a", "2026-02-01T00:00:00Z", **same), failure("b", **same)]
    assert counts(answer(*months)) == {"covered": 2}


def test_case_24_a_cascade_has_one_outcome_the_worst() -> None:
    same = {"job": "llm", "root_cause": "switch-3", "steady_at": None}
    cascade = [failure("a", **same), missed("b", "2026-03-01T12:05:00Z", **same)]
    assert verdicts(answer(*cascade)) == {"a": "missed", "b": "merged"}


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("2026-03-01T12:04:59Z", {"a": "missed", "b": "merged"}),
        ("2026-03-01T12:05:00Z", {"a": "covered", "b": "missed"}),
    ],
)
def test_case_25_a_failure_during_recovery_belongs_to_the_first(second: str, told: Json) -> None:
    first = failure("a", job="llm", steady_at="2026-03-01T12:05:00Z")
    assert verdicts(answer(first, missed("b", second, job="llm"))) == told


@pytest.mark.parametrize(
    ("categories", "told"), [(["no_spare_held"], "excluded"), (["customer_cause"], "missed")]
)
def test_case_26_no_spare_free_is_excluded_only_where_the_terms_say_so(
    categories: list[str], told: str
) -> None:
    one = missed("x")
    made = decision("D", one, category="no_spare_held", evidence=["spares at 12:00: 0"])
    found = answer(one, decisions=[made], terms=terms(exclusion_categories=categories))
    assert verdicts(found) == {"x": told}


def test_case_27_a_customers_cause_needs_two_people_and_evidence() -> None:
    one = missed("x")
    assert verdicts(answer(one)) == {"x": "missed"}
    assert verdicts(answer(one, decisions=[decision("D", one)])) == {"x": "excluded"}
    alone = decision("D", one, checker="ann")
    assert verdicts(answer(one, decisions=[alone])) == {"x": "missed"}


def test_case_28_an_unsupported_run_is_recorded_and_never_counted() -> None:
    assert counts(answer(missed("x", protected=False))) == {"unsupported": 1}


def test_case_29_a_fault_moved_away_in_time_counts_only_where_the_terms_say_so() -> None:
    one = failure("x", predicted=True)
    assert answer(one)["outcome"] == "met_no_events"
    assert answer(one, terms=terms(predicted_failures_count=True))["outcome"] == "met"


def test_case_30_time_that_nobody_measured_is_no_time_without_failures() -> None:
    agent_off = [{"start": "2026-01-01T00:00:00Z", "end": "2026-07-01T00:00:00Z"}]
    found = answer(failure("c"), measured_spans=agent_off, terms=terms(minimum_measured_bp=9500))
    assert (found["measured_bp"], found["outcome"]) == (4958, "insufficient_data")


def test_case_31_a_clock_that_may_lie_over_the_boundary_needs_a_decision() -> None:
    skewed = failure("x", "2026-12-31T23:59:59Z", clock_uncertainty_ms=5000)
    assert answer(skewed)["outcome"] == "blocked"
    made = decision("D", skewed, kind="boundary", category="before", decided="2027-01-10T00:00:00Z")
    assert answer(skewed, decisions=[made])["outcome"] == "met"


def test_case_32_late_evidence_counts_as_absent_and_a_late_record_starts_nothing_later() -> None:
    late = failure("x", resumed=resumed(recorded="2027-03-01T00:00:00Z"))
    assert verdicts(answer(late)) == {"x": "missed"}
    stored_late = failure("y", "2026-12-31T23:00:00Z", recorded="2027-01-05T00:00:00Z")
    assert answer(stored_late)["recorded"] == 1


@pytest.mark.parametrize(
    ("as_of", "recorded"), [("2027-04-30T00:00:00Z", 0), ("2027-05-01T00:00:00Z", 1)]
)
def test_case_33_a_backfilled_failure_is_known_from_when_it_was_recorded(
    as_of: str, recorded: int
) -> None:
    old = failure("x", recorded="2027-05-01T00:00:00Z")
    assert answer(old, as_of=as_of)["recorded"] == recorded


def test_case_35_corruption_found_weeks_later_belongs_to_the_year_of_its_first_bad_step() -> None:
    found_late = {"observed": "2027-01-20T00:00:00Z", "recorded": "2027-01-20T00:00:00Z"}
    assert answer(missed("x", "2026-12-30T00:00:00Z", **found_late))["missed"] == 1


def test_case_36_force_majeure_is_excluded_only_where_the_terms_list_it() -> None:
    one = missed("x")
    made = decision("D", one, category="force_majeure")
    found = answer(one, decisions=[made])
    assert (verdicts(found), len(found["invalid_decisions"])) == ({"x": "missed"}, 1)
    listed = terms(exclusion_categories=["force_majeure"])
    assert counts(answer(one, decisions=[made], terms=listed)) == {"excluded": {"force_majeure": 1}}


def test_case_37_a_drill_is_excluded_and_seen() -> None:
    found = answer(missed("x", drill=True))
    assert (found["recorded"], found["excluded"]) == (1, {"drill": 1})
