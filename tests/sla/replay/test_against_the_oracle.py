"""Random years: our answer is the oracle's, the words of why apart."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from .files import Json, decision, evaluated, failure, file, order, resumed, terms
from .oracle import Oracle, text_of, us

STARTS = [
    ("2026-01-01", "UTC"),
    ("2024-02-29", "Europe/Berlin"),
    ("2018-11-04", "America/Sao_Paulo"),
    ("2018-10-28", "Atlantic/Azores"),
    ("2026-03-29", "Asia/Kolkata"),
]
CAUSES = ["device", "node", "fabric", "driver", "operating_system", "node", "user_code", None]
MINUTE = 60 * 10**6


def random_file(seed: int, many: int) -> Json:
    """A year with ties, boundaries hit to the microsecond, and groups that overlap."""
    rng = random.Random(seed)
    start, zone = rng.choice(STARTS)
    year = rng.choice([1, 1, 2, 3])
    contract: Json = {"start": start, "zone": zone, "currency": rng.choice(["USD", "JPY"])}
    data = file(contract=contract, year=year, orders=[], terms=random_terms(rng, start))
    years = Oracle(data | {"as_of": "2040-01-01T00:00:00Z"}).years
    begins, ends = years[year]
    if rng.random() < 0.5:
        since = rng.choice([begin for begin, _ in years.values()]) // 10**6
        day = datetime.fromtimestamp(since, ZoneInfo(zone)).date().isoformat()
        if day != start:
            data["terms"] = [random_terms(rng, day, version=2), data["terms"]]
    if rng.random() < 0.2:
        ends = rng.randrange(begins + MINUTE, ends)
        contract["terminated"] = text_of(ends)
    borders = [begin for begin, _ in years.values() if begin < ends]
    moments = [*borders, ends, *(rng.randrange(begins, ends) for _ in range(max(1, many // 4)))]
    for n in range(many):
        data["failures"].append(random_failure(rng, f"F{n:04}", moments, ends))
    random_contradictions(rng, data["failures"], begins)
    data["as_of"] = text_of(ends + rng.choice([-(10**9), 0, 1, 4 * 86_400 * 10**6, 10**14]))
    random_decisions(rng, data)
    for n in range(rng.randrange(4)):
        signed = text_of(ends + rng.choice([-1, 0, 1, 10**9]) + 10 * n)
        kind = rng.choice(["subscription", "renewal", "expansion"])
        amount = rng.randrange(10**6)
        fields = {"signed": signed, "amount_minor": amount, "currency": contract["currency"]}
        data["orders"].append(order(f"O{n}", kind=kind, year=rng.choice([year, 9]), **fields))
    spans = [sorted(rng.randrange(begins - 10**12, ends + 10**12) for _ in "ab") for _ in range(3)]
    data["measured_spans"] = [{"start": text_of(a), "end": text_of(b)} for a, b in spans]
    return data


def random_terms(rng: random.Random, start: str, version: int = 1) -> Json:
    denominator = rng.choice([1, 3, 100])
    bases = ["fees_of_failed_year", "next_renewal", "first_of_renewal_or_expansion"]
    return terms(
        version=version,
        effective_from=start,
        exclusion_categories=rng.choice([["customer_cause"], ["weather"], ["drill"]]),
        target={"numerator": rng.randint(1, denominator), "denominator": denominator},
        credit_base=rng.choice(bases),
        credit_rate_bp=rng.choice([2500, 3333]),
        credit_cap_minor=rng.choice(["none", 10**5]),
        rounding=rng.choice(["half_up", "up"]),
        leap_rule=rng.choice(["feb_28", "mar_1"]),
        mechanism=rng.choice(["live_migration", "outcome_only"]),
        predicted_failures_count=rng.random() < 0.5,
        grouping_window_minutes=rng.choice([0, 1, 30]),
        evidence_cutoff_days=rng.choice([0, 3]),
        grace_days=rng.choice([0, 4]),
        minimum_measured_bp=rng.choice([0, 2000]),
    )


def random_failure(rng: random.Random, name: str, moments: list[int], ends: int) -> Json:
    nudge = rng.choice([0, 0, -1, 1, MINUTE, 30 * MINUTE, 30 * MINUTE - 1, -MINUTE])
    onset = rng.choice(moments) + nudge
    occurred = text_of(onset)
    steady = rng.choice([None, text_of(onset), text_of(onset + MINUTE), text_of(onset + 10**10)])
    told = rng.choice([onset, onset, onset, ends + 3 * 86_400 * 10**6 + rng.choice([0, 1])])
    how = resumed(
        recorded=text_of(max(onset, told)),
        recomputed_committed_steps=rng.choice([0, 0, 0, 0, 1]),
        mechanism=rng.choice(["live_migration"] * 4 + ["restart_in_place"]),
    )
    return failure(
        name,
        occurred,
        job=rng.choice(["a", "b"]),
        root_cause=rng.choice(["r", "s"]),
        cause_class=rng.choice(CAUSES),
        clock_uncertainty_ms=rng.choice([0] * 80 + [1, 120_000]),
        protected=rng.random() < 0.9,
        predicted=rng.random() < 0.2,
        drill=rng.random() < 0.1,
        resumed=rng.choice([how, how, how, None]),
        steady_at=steady,
    )


def random_contradictions(rng: random.Random, failures: list[Json], begins: int) -> None:
    """Seldom another report of a failure that says something else, half of them just before the year."""
    before = [one for one in failures if -2 * MINUTE <= us(one["occurred"]) - begins < 0]
    some = before if before and rng.random() < 0.5 else list(failures)
    for one in rng.sample(some, min(len(some), rng.choice([0, 0, 0, 0, 0, 1, 2]))):
        onset = us(one["occurred"])
        changed = rng.choice(
            [
                {"steady_at": text_of(onset + rng.choice([0, 10**10]))},
                {"root_cause": "else"},
                {"occurred": text_of(onset + rng.choice([-MINUTE, MINUTE]))},
                {"drill": not one["drill"]},
                {"clock_uncertainty_ms": 1},
                {},
            ]
        )
        later = rng.choice([-1, 1]) if changed else 0
        failures.append(one | changed | {"recorded": text_of(us(one["recorded"]) + later)})


def random_decisions(rng: random.Random, data: Json) -> None:
    told: dict[str, list[Json]] = {}
    for one in data["failures"]:
        told.setdefault(one["id"], []).append(one)
    failures = [rng.choice(contents) for contents in told.values()]
    subjects = rng.sample(failures, min(len(failures), 6))
    uncertain = [one for one in failures if one["clock_uncertainty_ms"]]
    subjects += [one for one in uncertain if one not in subjects]
    for n, one in enumerate([*subjects, *(one for one in uncertain if rng.random() < 0.8)]):
        boundary = n >= len(subjects)
        side = rng.choice(["before", "after"]) if boundary else "customer_cause"
        flaw = rng.choice([{}, {}, {"checker": "Ann"}, {"evidence": []}, {"category": "weather"}])
        when = us(data["as_of"]) + rng.choice([-1, 0, 0, 1])
        kind = "boundary" if boundary else "exclude"
        fields = {"kind": kind, "category": side, "decided": text_of(when), **flaw}
        data["decisions"].append(decision(f"D{n}", one, **fields))


def without_words(answer: Json) -> Json:
    """The whole answer, with ids where it has sentences."""
    doubt = r"failures: (\S+) (?:may lie|was reported)|orders: no (subscription) of year"
    named = [re.match(doubt, one) for one in answer["blocked_by"]]
    assert all(named)
    assert all(line["why"] for line in answer["lines"])
    return answer | {
        "blocked_by": sorted(one[1] or one[2] for one in named if one),
        "invalid_decisions": [one["id"] for one in answer["invalid_decisions"]],
        "lines": [{n: v for n, v in line.items() if n != "why"} for line in answer["lines"]],
    }


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40))
def test_a_random_year_is_counted_as_the_oracle_counts_it(seed: int, many: int) -> None:
    data = random_file(seed, many)
    assert without_words(evaluated(data)) == Oracle(data).answer()


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 2**32))
@example(0)
def test_a_year_of_a_thousand_failures_is_counted_as_the_oracle_counts_it(seed: int) -> None:
    data = random_file(seed, 1000)
    assert without_words(evaluated(data)) == Oracle(data).answer()


def test_the_random_years_reach_every_verdict_and_every_outcome() -> None:
    """Else the comparison would prove little."""
    answers = [evaluated(random_file(seed, seed % 25)) for seed in range(600)]
    assert {line["verdict"] for one in answers for line in one["lines"]} == {
        *("covered", "missed", "averted", "excluded", "unsupported", "merged", "awaiting")
    }
    assert {line["rule"] for one in answers for line in one["lines"]} >= {
        *("before_steady", "same_cause", "grace_over", "decision", "drill", "predicted_counts")
    }
    outcomes = {one["outcome"] for one in answers}
    assert outcomes >= {"open", "blocked", "short", "met", "insufficient_data"}
    assert any(one["credit"] and one["credit"]["state"] == "unpriced" for one in answers)
    assert any(one["invalid_decisions"] for one in answers)
    blocked = [problem for one in answers for problem in one["blocked_by"]]
    for words in ("may lie", "was reported with", "no subscription"):
        assert any(words in problem for problem in blocked)


@pytest.mark.parametrize("field", ["covered", "misses_left", "measured_bp", "outcome"])
def test_the_comparison_sees_a_changed_figure(field: str) -> None:
    data = random_file(1, 30)
    assert without_words(evaluated(data)) | {field: "else"} != Oracle(data).answer()


def test_the_oracle_finds_the_instant_that_a_day_begins_with() -> None:
    data = file(contract={"start": "2018-11-04", "zone": "America/Sao_Paulo"})
    data["terms"]["effective_from"] = "2018-11-04"
    midnight = datetime(2018, 11, 4, 3, tzinfo=UTC)
    assert Oracle(data).start == (midnight - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )
