"""The year counted again from the raw JSON, slowly and by the letter of the format.

It imports nothing of ours. Instants are whole microseconds, groups are found by asking every pair, ratios
are fractions.
"""

from __future__ import annotations

import hashlib
import itertools
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Any
from zoneinfo import ZoneInfo

import rfc8785

Json = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 24 * 3600 * 10**6
COUNTED = ("missed", "awaiting", "covered")
"""From the worst to the best; these open and join groups."""


def us(text: str) -> int:
    since = datetime.fromisoformat(text.replace("Z", "+00:00")) - EPOCH
    return since.days * DAY + since.seconds * 10**6 + since.microseconds


def text_of(instant: int) -> str:
    at = EPOCH + timedelta(microseconds=instant)
    return at.isoformat().replace("+00:00", "Z")


def first_instant(day: date, zone: str) -> int:
    """By stepping through the minutes around midnight until the local date is reached."""
    at = int((datetime.combine(day, time(), tzinfo=UTC) - EPOCH).total_seconds()) - 26 * 3600
    for step in (3600, 60, 1):
        while datetime.fromtimestamp(at + step, ZoneInfo(zone)).date() < day:
            at += step
    return (at + 1) * 10**6


def empty(value: object) -> bool:
    return value is None or value == ""


def order(failure: Json) -> tuple[int, str]:
    return us(failure["occurred"]), failure["id"]


class Oracle:
    """The answer to one file, except for the words of ``why``."""

    def __init__(self, data: Json) -> None:
        self.data, self.as_of = data, us(data["as_of"])
        given = [data["terms"]] if isinstance(data["terms"], dict) else data["terms"]
        self.versions = sorted(given, key=lambda one: str(one["effective_from"]))
        days = [date.fromisoformat(one["effective_from"]) for one in self.versions]
        self.since = [first_instant(day, data["contract"]["zone"]) for day in days]
        self.years = {n: self.year(n) for n in range(1, data["year"] + 2)}
        self.start, self.end = self.years[data["year"]]
        self.terms = self.by(data["year"])
        self.known = [one for one in data["failures"] if us(one["recorded"]) <= self.as_of]
        self.told: dict[str, list[Json]] = {}
        for one in sorted(self.known, key=lambda one: us(one["recorded"])):
            self.told.setdefault(one["id"], []).append(one)
        self.failures = sorted((told[0] for told in self.told.values()), key=order)
        self.made = [one for one in data["decisions"] if us(one["decided"]) <= self.as_of]
        # In this order: what is excluded is asked of the year in which the sides put it.
        self.sides = [one for one in self.made if one["kind"] == "boundary" and self.holds(one)]
        self.numbers = {one["id"]: self.number_of(one) for one in self.failures}
        self.excluded = [one for one in self.made if one["kind"] == "exclude" and self.holds(one)]
        self.wrong_ones = [one for one in self.made if one not in self.sides + self.excluded]

    def year(self, number: int) -> tuple[int, int]:
        first = date.fromisoformat(self.data["contract"]["start"])

        def begins(year: int) -> int:
            try:
                day = first.replace(year=year)
            except ValueError:
                feb = self.versions[0]["leap_rule"] == "feb_28"
                day = date(year, 2, 28) if feb else date(year, 3, 1)
            return first_instant(day, self.data["contract"]["zone"])

        start, end = begins(first.year + number - 1), begins(first.year + number)
        ended = self.data["contract"].get("terminated")
        return start, min(end, us(ended)) if ended else end

    def by(self, number: int) -> Json:
        """The terms that govern a year."""
        begins = self.years[number][0]
        found: Json = [
            one for one, at in zip(self.versions, self.since, strict=True) if at <= begins
        ][-1]
        return found

    def contents(self, name: str) -> list[Json]:
        return self.told.get(name, [])

    def crossed(self, failure: Json, edges: list[int]) -> list[int]:
        at, doubt = us(failure["occurred"]), failure["clock_uncertainty_ms"] * 1000
        return [edge for edge in edges if at - doubt < edge < at + doubt]

    def nominal(self, failure: Json) -> int | None:
        here = range(1, self.data["year"] + 1)
        at = us(failure["occurred"])
        return next((n for n in here if self.years[n][0] <= at < self.years[n][1]), None)

    def number_of(self, failure: Json) -> int | None:
        """The year of the onset, or what a boundary decision says; None for one that does not exist."""
        here = self.data["year"]
        begins = {self.years[number][0]: number for number in range(1, here + 1)} | {
            self.end: here + 1
        }
        edges = self.crossed(failure, [self.start, self.end]) or self.crossed(failure, list(begins))
        sides = [d["category"] for d in self.sides if d["failure"] == failure["id"]]
        if len(edges) != 1 or len(set(sides)) != 1:
            return self.nominal(failure)
        number = begins[edges[0]] if sides[0] == "after" else begins[edges[0]] - 1
        exists = number >= 1 and self.years[number][0] < self.years[number][1]
        return number if exists else None

    def holds(self, decision: Json) -> bool:
        subjects = self.contents(decision["failure"])
        hashes = [hashlib.sha256(rfc8785.dumps(one)).hexdigest() for one in subjects]
        categories = ["before", "after"]
        if decision["kind"] == "exclude":
            number = self.numbers.get(decision["failure"])
            asked = self.versions if number is None else [self.by(number)]
            categories = [each for one in asked for each in one["exclusion_categories"] or []]
        persons = {str(decision[who] or "").casefold() for who in ("maker", "checker")}
        return (
            not empty(decision["checker"])
            and len(persons) == 2
            and bool(decision["evidence"])
            and decision["subject_sha256"] in hashes
            and decision["category"] in categories
        )

    def evidence(self, failure: Json, number: int) -> Json | None:
        """What shows how the run went on, by the cut-off of the year in which the failure is counted."""
        how: Json | None = failure["resumed"]
        if how is None or us(how["recorded"]) > self.as_of:
            return None
        terms = self.by(number)
        days = min(terms["evidence_cutoff_days"], terms["grace_days"])
        last = self.years[number][1] + days * DAY
        return None if us(how["recorded"]) > last else how

    def nothing_lost(self, how: Json, terms: Json) -> bool:
        return (
            how["next_committed_step"] - how["last_committed_step"] == 1
            and how["recomputed_committed_steps"] == 0
            and how["checkpoint_read"] is False
            and how["digests_equal"] is True
            and (terms["mechanism"] == "outcome_only" or how["mechanism"] == "live_migration")
        )

    def bucket(self, failure: Json, number: int) -> tuple[str, str, str]:
        """(verdict, rule, category) of the failure alone, where it is counted in year ``number``."""
        how, terms = self.evidence(failure, number), self.by(number)
        if failure["drill"]:
            return "excluded", "drill", "drill"
        if failure["cause_class"] == "user_code":
            return "excluded", "user_code", "user_code"
        if not failure["protected"]:
            return "unsupported", "not_protected", ""
        for decision in self.excluded:
            named = decision["category"] in (terms["exclusion_categories"] or [])
            if decision["failure"] == failure["id"] and named:
                return "excluded", "decision", decision["category"]
        kept = how is not None and self.nothing_lost(how, terms)
        if failure["predicted"] and kept and not terms["predicted_failures_count"]:
            return "averted", "predicted", ""
        if failure["cause_class"] is None:
            return "awaiting", "cause_unknown", ""
        if how is None:
            return "awaiting", "outcome_unknown", ""
        if not kept:
            return "missed", "progress_lost", ""
        return "covered", "predicted_counts" if failure["predicted"] else "nothing_lost", ""

    def joins(self, head: Json, later: Json, number: int) -> str:
        if head["job"] != later["job"] or order(head) > order(later):
            return ""
        onset, at = us(head["occurred"]), us(later["occurred"])
        steady = head["steady_at"]
        if steady is not None and us(steady) <= self.as_of and onset <= at < us(steady):
            return "before_steady"
        window = self.by(number)["grouping_window_minutes"] * 60 * 10**6
        if head["root_cause"] == later["root_cause"] and onset <= at < onset + window:
            return "same_cause"
        return ""

    def groups(self) -> list[tuple[Json, int, list[tuple[Json, str]]]]:
        """(head, its year, members with how they joined)."""
        found: list[tuple[Json, int, list[tuple[Json, str]]]] = []
        for one in self.failures:
            for head, number, members in found:
                way = self.joins(head, one, number)
                if way and self.bucket(one, number)[0] in COUNTED:
                    members.append((one, way))
                    break
            else:
                own = self.numbers[one["id"]]
                if own in range(1, self.data["year"] + 1) and self.bucket(one, own)[0] in COUNTED:
                    found.append((one, own, []))
        return found

    def lines(self) -> list[Json]:
        grace_over = self.as_of >= self.end + self.terms["grace_days"] * DAY
        here = self.data["year"]
        found, grouped = {}, set()
        for head, number, members in self.groups():
            grouped |= {head["id"], *(one["id"] for one, _ in members)}
            if number != here:
                continue
            for one, way in members:
                found[one["id"]] = ("merged", way, "")
            everyone = [self.bucket(one, here) for one in (head, *(one for one, _ in members))]
            worst = min(everyone, key=lambda one: COUNTED.index(one[0]))
            late = grace_over and worst[0] == "awaiting"
            found[head["id"]] = ("missed", "grace_over", "") if late else worst
        for one in self.failures:
            if one["id"] not in grouped and self.numbers[one["id"]] == here:
                found[one["id"]] = self.bucket(one, here)
        return [
            {"failure": one["id"], "verdict": told[0], "rule": told[1], "category": told[2]}
            for one in self.failures
            if (told := found.get(one["id"]))
        ]

    def measured(self) -> int | None:
        until = min(self.end, self.as_of)
        if until <= self.start:
            return None
        edges = [(us(span["start"]), us(span["end"])) for span in self.data["measured_spans"]]
        points = sorted({self.start, until, *(p for e in edges for p in e)})
        inside = [(a, b) for a, b in itertools.pairwise(points) if self.start <= a < until]
        time_measured = sum(b - a for a, b in inside if any(s <= a and b <= e for s, e in edges))
        return floor(Fraction(time_measured, until - self.start) * 10_000)

    def undecided(self) -> list[str]:
        """Failures whose clock leaves the year open, without a decision that tells it."""
        found = set()
        for one in self.known:
            decided = [d for d in self.sides if d["failure"] == one["id"]]
            crossed = self.crossed(one, [self.start, self.end])
            if len(crossed) > 1 or (crossed and not decided):
                found.add(one["id"])
        return sorted(found)

    def contradicted(self, counted: list[str]) -> list[str]:
        """Failures told in two ways, where one of the ways has to do with the year."""
        here, found = self.data["year"], []
        for name, told in self.told.items():
            if all(one == told[0] for one in told):
                continue
            within = any(here in (self.nominal(one), self.number_of(one)) for one in told)
            if name in counted or within or any(self.heads(one) for one in told):
                found.append(name)
        return found

    def heads(self, content: Json) -> bool:
        """Whether a failure of the year would belong to this one."""
        number, here = self.number_of(content), self.data["year"]
        if number not in range(1, here + 1) or self.bucket(content, number)[0] not in COUNTED:
            return False
        return any(
            self.joins(content, one, number) and self.bucket(one, number)[0] in COUNTED
            for one in self.failures
            if self.numbers[one["id"]] == here and one["id"] != content["id"]
        )

    def fees(self) -> list[Json]:
        year = self.data["year"]
        bought = [o for o in self.data["orders"] if o["kind"] == "subscription"]
        return [o for o in bought if o["year"] == year and us(o["signed"]) <= self.as_of]

    def unpaid(self) -> bool:
        """Whether the fees that the credit is computed from are nowhere told."""
        return self.terms["credit_base"] == "fees_of_failed_year" and not self.fees()

    def credit(self) -> Json:
        base: int | None = None
        wanted = {"next_renewal": ["renewal"]}.get(
            self.terms["credit_base"], ["renewal", "expansion"]
        )
        known = [one for one in self.data["orders"] if us(one["signed"]) <= self.as_of]
        if self.terms["credit_base"] == "fees_of_failed_year":
            base = sum(one["amount_minor"] for one in self.fees())
        else:
            currency = self.data["contract"]["currency"]
            after = [o for o in known if o["kind"] in wanted and us(o["signed"]) >= self.end]
            after = sorted(
                (o for o in after if o["currency"] == currency), key=lambda o: us(o["signed"])
            )
            base = after[0]["amount_minor"] if after else None
        amount = None
        if base is not None:
            exact = Fraction(base * self.terms["credit_rate_bp"], 10_000)
            half_up = floor(exact + Fraction(1, 2))
            amount = ceil(exact) if self.terms["rounding"] == "up" else half_up
            if self.terms["credit_cap_minor"] != "none":
                amount = min(amount, self.terms["credit_cap_minor"])
        return {
            "basis_points": self.terms["credit_rate_bp"],
            "base_minor": base,
            "amount_minor": amount,
            "currency": self.data["contract"]["currency"],
            "state": "unpriced" if base is None else "priced",
        }

    def answer(self) -> Json:
        lines = self.lines()
        number = {
            verdict: sum(line["verdict"] == verdict for line in lines)
            for verdict in ("covered", "missed", "averted", "unsupported", "merged", "awaiting")
        }
        excluded: dict[str, int] = {}
        for line in lines:
            if line["verdict"] == "excluded":
                excluded[line["category"]] = excluded.get(line["category"], 0) + 1
        covered, missed = number["covered"], number["missed"]
        qualifying = covered + missed
        promise = Fraction(self.terms["target"]["numerator"], self.terms["target"]["denominator"])
        short_by = max(0, ceil(promise * qualifying) - covered)
        left = max(0, floor((qualifying * (1 - promise) - missed) / promise))
        share = floor(Fraction(covered * 10_000, qualifying)) if qualifying else None
        doubts = self.undecided() + self.contradicted([line["failure"] for line in lines])
        outcome = self.outcome(number["awaiting"], qualifying, short_by, doubts)
        if outcome == "short" and self.unpaid():
            outcome, doubts = "blocked", ["subscription"]
        return {
            "year": {"start_utc": text_of(self.start), "end_utc": text_of(self.end)},
            "recorded": len(lines),
            "qualifying": qualifying,
            **number,
            "excluded": excluded,
            "outcome": outcome,
            "blocked_by": sorted(doubts),
            "invalid_decisions": [one["id"] for one in self.wrong_ones],
            "misses_left": left,
            "short_by": short_by,
            "coverage_truncated": None
            if share is None
            else f"{share // 100}.{share % 100 // 10}{share % 10}",
            "measured_bp": self.measured(),
            "credit": self.credit() if outcome == "short" else None,
            "lines": [
                {name: line[name] for name in ("failure", "verdict", "rule")} for line in lines
            ],
        }

    def outcome(self, awaiting: int, qualifying: int, short_by: int, doubts: list[str]) -> str:
        if self.as_of < self.end:
            return "open"
        if awaiting:
            return "open"
        if doubts:
            return "blocked"
        if short_by:
            return "short"
        measured = self.measured()
        if measured is None or measured < self.terms["minimum_measured_bp"]:
            return "insufficient_data"
        return "met" if qualifying else "met_no_events"
