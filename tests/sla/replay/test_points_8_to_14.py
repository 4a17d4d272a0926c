"""The decided points 8 to 14 of the file format, each on both sides of its boundaries."""

from __future__ import annotations

import pytest

from .files import (
    Json,
    answer,
    counts,
    decision,
    failure,
    file,
    missed,
    order,
    refused,
    resumed,
    terms,
    verdicts,
)

# --- 8: decisions -------------------------------------------------------------------------------------


def test_point_8_a_valid_decision_excludes() -> None:
    one = missed("x")
    found = answer(one, decisions=[decision("D", one)])
    assert (counts(found), found["invalid_decisions"]) == ({"excluded": {"customer_cause": 1}}, [])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"checker": "ann"}, "ann made and checked it"),
        ({"checker": " ann "}, "ann made and checked it"),
        ({"checker": "Ann"}, "ann made and checked it"),
        ({"maker": "Straße", "checker": "STRASSE"}, "Straße made and checked it"),
        ({"checker": None}, "it has no checker"),
        ({"checker": " "}, "it has no checker"),
        ({"maker": ""}, "it has no maker"),
        ({"evidence": []}, "it has no evidence"),
        ({"evidence": [""]}, "it has no evidence"),
        ({"subject_sha256": "0" * 64}, "its hash is not that of the failure as it stands"),
        ({"subject_sha256": None}, "its hash is not that of the failure as it stands"),
        ({"category": "weather"}, "it names 'weather', which the terms do not have"),
        ({"failure": "y"}, "no failure y is known"),
        ({"kind": "boundary"}, "it names 'customer_cause', which no boundary has"),
    ],
)
def test_point_8_a_bad_decision_changes_nothing_and_is_listed(wrong: Json, why: str) -> None:
    one = missed("x")
    found = answer(one, decisions=[decision("D", one, **wrong)])
    assert counts(found) == {"missed": 1}
    assert found["invalid_decisions"] == [{"id": "D", "why": why}]
    assert found["outcome"] == "short"


def test_point_8_the_hash_is_in_lower_case() -> None:
    one = missed("x")
    upper = decision("D", one)
    upper["subject_sha256"] = upper["subject_sha256"].upper()
    assert counts(answer(one, decisions=[upper])) == {"missed": 1}


def test_point_8_a_decision_on_what_was_changed_since_does_not_hold() -> None:
    one = missed("x")
    made = decision("D", one)
    assert counts(answer(one | {"root_cause": "else"}, decisions=[made])) == {"missed": 1}
    assert counts(answer(dict(reversed(one.items())), decisions=[made])) == {
        "excluded": {"customer_cause": 1}
    }


@pytest.mark.parametrize(
    ("decided", "bucket"),
    [
        ("2027-06-01T00:00:00Z", {"excluded": {"customer_cause": 1}}),
        ("2027-06-01T00:00:00.000001Z", {"missed": 1}),
    ],
)
def test_point_8_a_decision_made_after_as_of_is_not_known(decided: str, bucket: Json) -> None:
    one = missed("x")
    found = answer(one, decisions=[decision("D", one, decided=decided, checker="bea")])
    assert (counts(found), found["invalid_decisions"]) == (bucket, [])


def test_point_8_a_valid_decision_on_what_an_earlier_bucket_takes_has_no_effect() -> None:
    one = failure("x", drill=True)
    found = answer(one, decisions=[decision("D", one)])
    assert (counts(found), found["invalid_decisions"]) == ({"excluded": {"drill": 1}}, [])


def test_point_8_two_valid_decisions_that_differ_block() -> None:
    one = missed("x")
    both = [decision("D", one), decision("E", one, category="drill")]
    found = answer(one, decisions=both)
    assert found["blocked_by"] == ["decisions: D, E exclude x under different categories"]
    assert found["outcome"] == "blocked"


# A year's own terms, the category that each has alone, and the year a failure at their boundary is put in.
OWN_CATEGORIES = [
    terms(exclusion_categories=["heat"]),
    terms(version=2, effective_from="2027-01-01", exclusion_categories=["flood"]),
]
SIDES = [
    ("2026-12-31T23:59:59Z", "after", "flood"),
    ("2026-12-31T23:59:59Z", "before", "heat"),
    ("2027-01-01T00:00:01Z", "before", "heat"),
    ("2027-01-01T00:00:01Z", "after", "flood"),
]


@pytest.mark.parametrize(("occurred", "side", "category"), SIDES)
@pytest.mark.parametrize("year", [1, 2, 3])
def test_point_8_a_category_is_held_against_the_year_that_a_boundary_decision_says(
    occurred: str, side: str, category: str, year: int
) -> None:
    """In every year that is evaluated: the year decided, not the one that the clock said."""
    one = missed("x", occurred, clock_uncertainty_ms=2000)
    decided = "2027-02-01T00:00:00Z"
    excluded = decision("D", one, category=category, decided=decided)
    put = decision("B", one, kind="boundary", category=side, decided=decided)
    later = {"year": year, "as_of": f"{2026 + year}-06-01T00:00:00Z", "terms": OWN_CATEGORIES}
    found = answer(one, decisions=[excluded, put], **later)
    here = (side == "before") == (year == 1) and year < 3
    assert (found["invalid_decisions"], found["blocked_by"]) == ([], [])
    assert counts(found) == ({"excluded": {category: 1}} if here else {})
    other = "flood" if category == "heat" else "heat"
    wrong = decision("D", one, category=other, decided=decided)
    found = answer(one, decisions=[wrong, put], **later)
    why = f"it names {other!r}, which the terms do not have"
    assert found["invalid_decisions"] == [{"id": "D", "why": why}]
    assert counts(found) == ({"missed": 1} if here else {})


def test_point_8_after_the_end_of_a_contract_there_are_no_terms_to_be_held_against() -> None:
    one = missed("x", "2026-12-31T23:59:59Z", clock_uncertainty_ms=2000)
    decided = "2027-02-01T00:00:00Z"
    both = [
        decision("B", one, kind="boundary", category="after", decided=decided),
        decision("D", one, category="heat", decided=decided),
    ]
    for terminated, invalid in (("2027-01-01T00:00:00Z", []), ("2027-01-01T00:00:01Z", ["D"])):
        contract = {"terminated": terminated}
        found = answer(one, decisions=both, contract=contract, terms=OWN_CATEGORIES)
        assert [each["id"] for each in found["invalid_decisions"]] == invalid
        assert found["recorded"] == 0


def test_point_8_of_two_reports_of_one_id_the_hash_tells_whose_year_counts() -> None:
    one = missed("x", "2026-12-01T00:00:00Z", source="a")
    other = missed("x", "2027-03-01T00:00:00Z", source="b")
    made = decision("D", one, category="flood", decided="2027-04-01T00:00:00Z")
    found = answer(one, other, decisions=[made], terms=OWN_CATEGORIES)
    assert [each["id"] for each in found["invalid_decisions"]] == ["D"]
    right = made | {"category": "heat"}
    found = answer(one, other, decisions=[right], terms=OWN_CATEGORIES)
    assert (found["invalid_decisions"], counts(found)) == ([], {"excluded": {"heat": 1}})


# --- 9: a report twice --------------------------------------------------------------------------------


def test_point_9_the_same_report_twice_counts_once() -> None:
    found = answer(failure("x"), failure("x"))
    assert (found["recorded"], found["outcome"]) == (1, "met")


def test_point_9_the_same_instant_written_otherwise_is_the_same_content() -> None:
    found = answer(failure("x"), failure("x") | {"observed": "2026-03-01T13:00:00+01:00"})
    assert (found["recorded"], found["outcome"]) == (1, "met")


def test_point_9_with_different_content_the_year_is_blocked() -> None:
    found = answer(failure("x"), failure("x", root_cause="else"))
    assert (found["recorded"], found["outcome"]) == (1, "blocked")
    assert found["blocked_by"] == ["failures: x was reported with different contents"]


def test_point_9_another_source_is_another_report() -> None:
    found = answer(failure("x", source="a"), failure("x", source="b"), failure("x"))
    assert (found["recorded"], found["merged"], found["outcome"]) == (3, 2, "met")


@pytest.mark.parametrize(
    ("occurred", "blocked"), [("2027-01-01T00:00:00Z", False), ("2026-12-31T23:00:00Z", True)]
)
def test_point_9_a_contradiction_of_another_year_does_not_block_this_one(
    occurred: str, blocked: bool
) -> None:
    found = answer(failure("x", occurred), failure("x", occurred, root_cause="else"))
    assert bool(found["blocked_by"]) == blocked


SECOND = {"year": 2, "as_of": "2028-06-01T00:00:00Z"}
IN_SECOND = "2027-01-01T00:30:00Z"


def contradicted_head(*steady_at: str, **changed: object) -> list[Json]:
    """Reports of one name at the end of year 1, the first recorded one first."""
    onset = "2026-12-31T23:59:00Z"
    return [
        failure("h", onset, job="llm", steady_at=at, recorded=f"2027-01-02T00:00:0{n}Z", **changed)
        for n, at in enumerate(steady_at)
    ]


@pytest.mark.parametrize(
    ("heads", "counted"),
    [
        # What was recorded first takes the miss with it into year 1; or what was recorded later would.
        (("2027-01-01T01:00:00Z", "2026-12-31T23:59:30Z"), 0),
        (("2026-12-31T23:59:30Z", "2027-01-01T01:00:00Z"), 1),
    ],
)
def test_point_9_a_contradicted_head_blocks_the_year_in_which_a_member_has_its_onset(
    heads: tuple[str, str], counted: int
) -> None:
    member = missed("m", IN_SECOND, job="llm")
    found = answer(*contradicted_head(*heads), member, **SECOND)
    assert (found["recorded"], found["outcome"]) == (counted, "blocked")
    assert found["blocked_by"] == ["failures: h was reported with different contents"]
    assert answer(contradicted_head(*heads)[0], member, **SECOND)["blocked_by"] == []


@pytest.mark.parametrize(
    ("head", "member"),
    [
        # Too late for any content, another job, or one of both stands apart.
        ({}, {"occurred": "2027-01-01T01:00:00Z"}),
        ({}, {"job": "other"}),
        ({}, {"drill": True}),
        ({"drill": True}, {}),
        ({"root_cause": "other"}, {"occurred": "2027-01-01T01:00:00Z"}),
    ],
)
def test_point_9_a_contradiction_that_takes_nothing_of_a_year_does_not_block_it(
    head: Json, member: Json
) -> None:
    heads = contradicted_head("2027-01-01T01:00:00Z", "2026-12-31T23:59:30Z", **head)
    fields = {"occurred": IN_SECOND, "job": "llm", **member}
    found = answer(*heads, failure("m", **fields), **SECOND)
    assert (found["recorded"], found["blocked_by"]) == (1, [])


def test_point_9_the_clock_of_each_content_may_leave_the_year_open() -> None:
    sure, unsure = contradicted_head("2026-12-31T23:59:30Z", "2026-12-31T23:59:30Z")
    unsure["clock_uncertainty_ms"] = 60_001
    found = answer(sure, unsure, **SECOND)
    assert ["failures: h may lie" in problem for problem in found["blocked_by"]] == [True]
    assert answer(sure, unsure | {"clock_uncertainty_ms": 60_000}, **SECOND)["blocked_by"] == []


def test_point_9_the_window_of_a_contradicted_head_blocks_too() -> None:
    heads = contradicted_head("2026-12-31T23:59:00Z", "2026-12-31T23:59:01Z", root_cause="r")
    inside = failure("m", "2027-01-01T00:28:59Z", job="llm", root_cause="r")
    assert answer(*heads, inside, **SECOND)["outcome"] == "blocked"
    beyond = failure("m", "2027-01-01T00:29:00Z", job="llm", root_cause="r")
    assert answer(*heads, beyond, **SECOND)["outcome"] == "met"


def test_point_9_what_was_recorded_after_as_of_is_not_known() -> None:
    later = failure("x", recorded="2027-06-01T00:00:00.000001Z")
    assert answer(later)["recorded"] == 0
    assert answer(later | {"recorded": "2027-06-01T00:00:00Z"})["recorded"] == 1
    contradicting = answer(failure("x"), later)
    assert (contradicting["outcome"], contradicting["recorded"]) == ("met", 1)


# --- 10: a clock that leaves the year open ------------------------------------------------------------


@pytest.mark.parametrize(
    ("occurred", "uncertainty", "blocked"),
    [
        ("2026-01-01T00:00:01Z", 1000, False),
        ("2026-01-01T00:00:01Z", 1001, True),
        ("2025-12-31T23:59:59Z", 1000, False),
        ("2025-12-31T23:59:59Z", 1001, True),
        ("2026-12-31T23:59:59Z", 1001, True),
        ("2027-01-01T00:00:00Z", 1, True),
        ("2027-01-01T00:00:00Z", 0, False),
        ("2026-07-01T00:00:00Z", 10**40, True),
    ],
)
def test_point_10_a_clock_that_crosses_a_boundary_blocks(
    occurred: str, uncertainty: int, blocked: bool
) -> None:
    found = answer(failure("x", occurred, clock_uncertainty_ms=uncertainty))
    assert bool(found["blocked_by"]) == blocked
    assert all("failures: x may lie" in problem for problem in found["blocked_by"])


@pytest.mark.parametrize(
    ("occurred", "side", "recorded"),
    [
        ("2025-12-31T23:59:59Z", "after", 1),
        ("2026-01-01T00:00:00Z", "before", 0),
        ("2026-12-31T23:59:59Z", "after", 0),
        ("2027-01-01T00:00:00Z", "before", 1),
    ],
)
def test_point_10_a_boundary_decision_says_the_side(
    occurred: str, side: str, recorded: int
) -> None:
    one = failure("x", occurred, clock_uncertainty_ms=2000)
    sure = decision("D", one, kind="boundary", category=side, decided="2027-02-01T00:00:00Z")
    found = answer(one, decisions=[sure])
    assert (found["recorded"], found["blocked_by"]) == (recorded, [])


def test_point_10_a_boundary_decision_moves_nothing_whose_clock_is_sure() -> None:
    one = failure("x")
    found = answer(one, decisions=[decision("D", one, kind="boundary", category="after")])
    assert (found["recorded"], found["invalid_decisions"]) == (1, [])


def test_point_10_no_side_of_one_boundary_helps_a_clock_that_crosses_both() -> None:
    one = failure("x", clock_uncertainty_ms=10**12)
    found = answer(one, decisions=[decision("D", one, kind="boundary", category="after")])
    assert found["blocked_by"] == [
        "failures: x may lie on either side of both boundaries of the year, by its clock"
    ]


def test_point_10_boundary_decisions_that_differ_block() -> None:
    one = failure("x", "2026-12-31T23:59:59Z", clock_uncertainty_ms=2000)
    at = "2027-02-01T00:00:00Z"
    sides = [
        decision(name, one, kind="boundary", category=side, decided=at)
        for name, side in (("D", "before"), ("E", "after"))
    ]
    found = answer(one, decisions=sides)
    assert found["blocked_by"] == [
        "decisions: D, E put x on different sides of 2027-01-01T00:00:00Z"
    ]


# --- 11: the test in whole numbers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("covered", "lost", "outcome", "left", "short"),
    [
        (9, 1, "met", 0, 0),
        (8, 1, "short", 0, 1),
        (20, 0, "met", 2, 0),
        (0, 1, "short", 0, 1),
        (7, 3, "short", 0, 2),
    ],
)
def test_point_11_figures(covered: int, lost: int, outcome: str, left: int, short: int) -> None:
    failures = [failure(f"c{n}") for n in range(covered)] + [missed(f"m{n}") for n in range(lost)]
    found = answer(*failures)
    assert (found["outcome"], found["misses_left"], found["short_by"]) == (outcome, left, short)


def test_point_11_coverage_is_cut_off_and_no_rounded_figure_decides() -> None:
    tight = terms(target={"numerator": 6667, "denominator": 10_000})
    found = answer(failure("a"), failure("b"), missed("c"), terms=tight)
    assert (found["coverage_truncated"], found["outcome"]) == ("66.66", "short")
    assert answer()["coverage_truncated"] is None


# --- 12: the price of a credit ------------------------------------------------------------------------


def credit(*orders: Json, as_of: str = "2027-06-01T00:00:00Z", **changed: object) -> Json | None:
    found: Json | None = answer(
        missed("m"), orders=list(orders), as_of=as_of, terms=terms(**changed)
    )["credit"]
    return found


def test_point_12_fees_of_the_failed_year_are_its_subscriptions() -> None:
    found = credit(
        order("1"),
        order("2", amount_minor=50_000),
        order("3", year=2),
        order("4", kind="expansion"),
        order("5", signed="2027-06-01T00:00:00.000001Z"),
    )
    assert found == {
        "basis_points": 2500,
        "base_minor": 150_000,
        "amount_minor": 37_500,
        "currency": "USD",
        "state": "priced",
    }


@pytest.mark.parametrize(
    ("base", "rounding", "amount"),
    [
        (100_010, "half_up", 25_003),
        (100_010, "up", 25_003),
        (100_009, "half_up", 25_002),
        (100_009, "up", 25_003),
        (100_008, "up", 25_002),
    ],
)
def test_point_12_one_rounding_on_the_total(base: int, rounding: str, amount: int) -> None:
    halves = [order("1", amount_minor=base // 2), order("2", amount_minor=base - base // 2)]
    found = credit(*halves, rounding=rounding)
    assert found is not None
    assert (found["base_minor"], found["amount_minor"]) == (base, amount)


@pytest.mark.parametrize(("cap", "amount"), [(0, 0), (24_999, 24_999), (25_001, 25_000)])
def test_point_12_the_cap_is_never_exceeded(cap: int, amount: int) -> None:
    found = credit(order("1"), credit_cap_minor=cap)
    assert found is not None
    assert found["amount_minor"] == amount


RENEWAL = order("r", kind="renewal", signed="2027-02-01T00:00:00Z", year=2, amount_minor=8)


@pytest.mark.parametrize(
    ("changed", "priced"),
    [
        ({"signed": "2027-01-01T00:00:00Z"}, True),
        ({"signed": "2026-12-31T23:59:59.999999Z"}, False),
        ({"signed": "2027-06-01T00:00:00Z"}, True),
        ({"signed": "2027-06-01T00:00:00.000001Z"}, False),
        ({"currency": "EUR"}, False),
        ({"kind": "expansion"}, False),
        ({"year": None}, True),
    ],
)
def test_point_12_the_next_renewal_is_the_first_signed_after_the_year(
    changed: Json, priced: bool
) -> None:
    found = credit(RENEWAL | changed, credit_base="next_renewal")
    assert found is not None
    told = (found["state"], found["base_minor"], found["amount_minor"])
    assert told == (("priced", 8, 2) if priced else ("unpriced", None, None))


def test_point_12_the_first_of_renewal_or_expansion() -> None:
    small = order("e", kind="expansion", signed="2027-01-15T00:00:00Z", amount_minor=4)
    found = credit(RENEWAL, small, credit_base="first_of_renewal_or_expansion")
    assert found is not None
    assert found["base_minor"] == 4
    alone = credit(RENEWAL, small, credit_base="next_renewal")
    assert alone is not None
    assert alone["base_minor"] == 8


@pytest.mark.parametrize("other", [{"amount_minor": 9}, {"amount_minor": 8}])
def test_point_12_two_orders_at_one_instant_block_where_they_differ(other: Json) -> None:
    found = answer(
        missed("m"),
        orders=[RENEWAL, RENEWAL | {"id": "q"} | other],
        terms=terms(credit_base="next_renewal"),
    )
    assert (found["outcome"] == "blocked") == (other["amount_minor"] == 9)
    assert (found["credit"] is None) == (found["outcome"] == "blocked")


def test_point_12_fees_in_another_currency_block_the_credit_they_would_be_the_base_of() -> None:
    foreign = [order("1"), order("2", currency="EUR")]
    found = answer(missed("m"), orders=foreign)
    assert found["blocked_by"] == ["orders: 2 is no USD, and its fees are the base of the credit"]
    assert answer(failure("c"), orders=foreign)["outcome"] == "met"


@pytest.mark.parametrize(
    "other", [{"year": 2}, {"kind": "renewal"}, {"signed": "2027-06-01T00:00:00.000001Z"}]
)
def test_point_12_without_fees_on_file_a_short_year_is_blocked_not_free(other: Json) -> None:
    missing = "orders: no subscription of year 1 is there, and its fees are the base of the credit"
    for orders in ([], [order("1", **other)]):
        found = answer(missed("m"), orders=orders)
        assert (found["outcome"], found["credit"]) == ("blocked", None)
        assert found["blocked_by"] == [missing]
        assert answer(failure("c"), orders=orders)["outcome"] == "met"
        renewal = terms(credit_base="next_renewal")
        assert answer(missed("m"), orders=orders[:0], terms=renewal)["outcome"] == "short"
    free = credit(order("1", amount_minor=0))
    assert free is not None
    assert (free["state"], free["amount_minor"]) == ("priced", 0)


def test_point_12_an_order_is_counted_once_and_blocks_when_it_contradicts_itself() -> None:
    found = credit(order("1"), order("1"))
    assert found is not None
    assert found["base_minor"] == 100_000
    other = answer(missed("m"), orders=[order("1"), order("1", amount_minor=5)])
    assert other["blocked_by"] == ["orders: 1 is there with different contents"]


def test_point_12_amounts_beyond_64_bits_are_exact() -> None:
    found = credit(order("1", amount_minor=10**40 + 2))
    assert found is not None
    assert found["amount_minor"] == (10**40 + 2) // 4 + 1


# --- 13: which terms, which year ----------------------------------------------------------------------


def versions(second_from: str) -> list[Json]:
    half = {"numerator": 50, "denominator": 100}
    return [terms(), terms(version=2, effective_from=second_from, target=half)]


@pytest.mark.parametrize(
    ("second_from", "outcome"),
    [("2026-01-01", "blocked"), ("2025-12-31", "short"), ("2026-01-02", "short")],
)
def test_point_13_the_terms_at_the_first_instant_govern_the_whole_year(
    second_from: str, outcome: str
) -> None:
    pair = [failure("c"), missed("m")]
    assert answer(*pair, terms=versions(second_from))["outcome"] == outcome


def test_point_13_a_later_version_applies_from_the_next_year() -> None:
    pair = [failure("c", "2027-03-01T00:00:00Z"), missed("m", "2027-03-02T00:00:00Z")]
    later = {"year": 2, "as_of": "2028-06-01T00:00:00Z"}
    assert answer(*pair, terms=versions("2026-01-02"), **later)["outcome"] == "met"
    assert answer(*pair, terms=versions("2027-01-02"), **later)["outcome"] == "short"


@pytest.mark.parametrize(("effective_from", "known"), [("2026-01-01", True), ("2026-01-02", False)])
def test_point_13_without_terms_in_force_recorded_alone_is_counted(
    effective_from: str, known: bool
) -> None:
    found = answer(missed("m"), terms=[terms(effective_from=effective_from)])
    if known:
        assert found["missed"] == 1
        return
    told = {name: value for name, value in found.items() if value is not None}
    assert told == {
        "year": {"start_utc": "2026-01-01T00:00:00Z", "end_utc": "2027-01-01T00:00:00Z"},
        "recorded": 1,
        "outcome": "blocked",
        "blocked_by": ["terms: none in force at the first instant of the year"],
    }
    assert answer(terms=[])["outcome"] == "blocked"


def test_point_13_the_leap_rule_is_that_of_the_first_version() -> None:
    old = terms(effective_from="2024-02-29", leap_rule="mar_1")
    new = terms(version=2, effective_from="2025-01-01", leap_rule="feb_28")
    found = answer(contract={"start": "2024-02-29"}, year=2, terms=[new, old])
    assert found["year"]["start_utc"] == "2025-03-01T00:00:00Z"


def test_point_13_there_is_no_credit_while_open_or_blocked() -> None:
    short = missed("m")
    assert answer(short, orders=[order("1")])["credit"] is not None
    running = answer(short, orders=[order("1")], as_of="2026-12-31T00:00:00Z")
    assert (running["outcome"], running["credit"], running["short_by"]) == ("open", None, 1)
    assert answer(short, orders=[order("1")], terms=terms(rounding=""))["credit"] is None
    assert answer(failure("c"), orders=[order("1")])["credit"] is None


@pytest.mark.parametrize(
    ("spans", "as_of", "share"),
    [
        ([("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")], "2026-01-04T00:00:00Z", 3333),
        ([("2025-01-01T00:00:00Z", "2028-01-01T00:00:00Z")], "2026-01-04T00:00:00Z", 10_000),
        (
            [
                ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
                ("2026-01-01T12:00:00Z", "2026-01-03T00:00:00Z"),
                ("2026-01-01T13:00:00Z", "2026-01-01T14:00:00Z"),
            ],
            "2026-01-05T00:00:00Z",
            5000,
        ),
        ([], "2026-01-04T00:00:00Z", 0),
        ([], "2026-01-01T00:00:00Z", None),
        ([("2026-01-05T00:00:00Z", "2026-01-06T00:00:00Z")], "2026-01-04T00:00:00Z", 0),
    ],
)
def test_point_13_measured_time_is_a_share_of_what_has_passed(
    spans: list[tuple[str, str]], as_of: str, share: int | None
) -> None:
    measured = [{"start": start, "end": end} for start, end in spans]
    assert answer(measured_spans=measured, as_of=as_of)["measured_bp"] == share


@pytest.mark.parametrize(
    ("terminated", "year", "end"),
    [
        ("2026-07-01T00:00:00Z", 1, "2026-07-01T00:00:00Z"),
        ("2027-01-01T00:00:00Z", 1, "2027-01-01T00:00:00Z"),
        ("2027-01-01T00:00:00.000001Z", 2, "2027-01-01T00:00:00.000001Z"),
        ("2028-05-01T00:00:00Z", 1, "2027-01-01T00:00:00Z"),
    ],
)
def test_point_13_a_terminated_contracts_last_year_ends_there(
    terminated: str, year: int, end: str
) -> None:
    found = answer(contract={"terminated": terminated}, year=year)
    assert found["year"]["end_utc"] == end


@pytest.mark.parametrize(
    ("terminated", "year"),
    [("2027-01-01T00:00:00Z", 2), ("2026-01-01T00:00:00Z", 1), ("2026-07-01T00:00:00Z", 10**30)],
)
def test_point_13_a_year_that_would_begin_at_or_after_it_is_refused(
    terminated: str, year: int
) -> None:
    data = file(contract={"terminated": terminated}, year=year)
    assert refused(data) == ("year_unknown", "$.year")


# --- 14: words ----------------------------------------------------------------------------------------


def test_point_14_the_answer_has_the_words_of_the_format() -> None:
    found = answer(failure("c", resumed=resumed()))
    assert list(found) == [
        "year",
        "recorded",
        "qualifying",
        "covered",
        "missed",
        "averted",
        "excluded",
        "unsupported",
        "merged",
        "awaiting",
        "outcome",
        "blocked_by",
        "invalid_decisions",
        "misses_left",
        "short_by",
        "coverage_truncated",
        "measured_bp",
        "credit",
        "lines",
    ]
    assert list(found["lines"][0]) == ["failure", "verdict", "rule", "why"]
    assert verdicts(found) == {"c": "covered"}


# --- Where two points meet ----------------------------------------------------------------------------


def test_points_2_and_4_a_grace_that_is_not_agreed_makes_nothing_missed() -> None:
    found = answer(failure("a", resumed=None), terms=terms(grace_days=None))
    assert (found["outcome"], counts(found)) == ("blocked", {"awaiting": 1})


@pytest.mark.parametrize(
    ("recorded", "told"),
    [("2027-01-10T00:00:00Z", "covered"), ("2027-01-10T00:00:00.000001Z", "awaiting")],
)
def test_points_4_and_9_evidence_recorded_after_as_of_is_not_known(
    recorded: str, told: str
) -> None:
    one = failure("x", resumed=resumed(recorded=recorded))
    assert verdicts(answer(one, as_of="2027-01-10T00:00:00Z")) == {"x": told}


@pytest.mark.parametrize(
    ("as_of", "told"),
    [("2026-03-01T13:00:00Z", "merged"), ("2026-03-01T12:59:59.999999Z", "covered")],
)
def test_points_5_and_9_when_the_run_got_steady_is_known_from_then_on(
    as_of: str, told: str
) -> None:
    head = failure("a", job="llm", steady_at="2026-03-01T13:00:00Z")
    later = failure("b", "2026-03-01T12:10:00Z", job="llm")
    assert verdicts(answer(head, later, as_of=as_of))["b"] == told


def test_points_5_and_9_a_contradicted_member_after_the_end_blocks_the_year_of_its_head() -> None:
    head = failure("a", "2026-12-31T23:59:00Z", job="llm", steady_at="2027-01-01T01:00:00Z")
    later = failure("b", "2027-01-01T00:30:00Z", job="llm")
    found = answer(head, later, later | {"root_cause": "else"})
    assert found["blocked_by"] == ["failures: b was reported with different contents"]
    alone = answer(later, later | {"root_cause": "else"})
    assert alone["blocked_by"] == []


def test_points_5_and_13_the_terms_of_the_heads_year_govern_its_group() -> None:
    short = terms(grouping_window_minutes=1)
    long = terms(version=2, effective_from="2027-01-01", grouping_window_minutes=120)
    same = {"job": "llm", "root_cause": "r", "steady_at": None}
    head = failure("a", "2026-12-31T23:59:00Z", **same)
    later = failure("b", "2027-01-01T00:30:00Z", **same)
    assert verdicts(answer(head, later, terms=[short, long])) == {"a": "covered"}
    assert verdicts(answer(head, later, terms=[short | {"grouping_window_minutes": 60}, long])) == {
        "a": "covered",
        "b": "merged",
    }


def test_points_5_and_13_a_year_without_terms_has_no_heads() -> None:
    since = terms(effective_from="2027-01-01")
    before = failure("a", "2026-12-31T23:59:00Z", job="llm", steady_at="2027-01-01T01:00:00Z")
    later = failure("b", "2027-01-01T00:30:00Z", job="llm")
    found = answer(before, later, terms=since, year=2, as_of="2028-06-01T00:00:00Z")
    assert verdicts(found) == {"b": "covered"}


def test_points_3_and_13_an_empty_leap_rule_of_the_first_version_blocks_where_it_is_needed() -> (
    None
):
    first = terms(effective_from="2024-01-01", leap_rule=None)
    later = terms(version=2, effective_from="2025-01-01")
    leap = answer(contract={"start": "2024-02-29"}, year=2, terms=[first, later])
    assert leap["blocked_by"] == [
        "terms version 1: leap_rule is empty, and it is that of the first version"
    ]
    plain = answer(contract={"start": "2024-03-01"}, year=2, terms=[first, later])
    assert plain["blocked_by"] == []


def test_points_3_and_13_rival_first_versions_block_where_their_leap_rule_is_needed() -> None:
    rivals = [terms(version=n, effective_from="2024-01-01") for n in (1, 2)]
    later = terms(version=3, effective_from="2025-01-01")
    leap = answer(contract={"start": "2024-02-29"}, year=2, terms=[*rivals, later])
    assert leap["blocked_by"] == ["terms: 2 versions are in force from 2024-01-01"]
    plain = answer(contract={"start": "2024-03-01"}, year=2, terms=[*rivals, later])
    assert plain["blocked_by"] == []


def test_point_13_one_name_for_two_versions_blocks() -> None:
    found = answer(terms=[terms(effective_from="2025-01-01"), terms()])
    assert found["blocked_by"] == ["terms: version 1 is there more than once"]


def test_points_8_and_9_one_decision_twice_is_one_and_two_of_one_name_block() -> None:
    one = missed("x")
    made = decision("D", one)
    assert answer(one, decisions=[made, made])["blocked_by"] == []
    found = answer(one, decisions=[made, made | {"reason": "else"}])
    assert found["blocked_by"] == ["decisions: D is there with different contents"]
