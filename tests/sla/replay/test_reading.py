"""What a file may hold: refused with a code and its place, or evaluated; the schema says the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from sla import replay
from sla.replay.file import schema

from .files import Json, decision, failure, file, order, refused, resumed, terms
from .test_against_the_oracle import random_file

SCHEMAS = Path(__file__).resolve().parents[3] / "docs" / "schemas"
SCHEMA = json.loads((SCHEMAS / "guarantee-replay.schema.json").read_text())
FITS = Draft202012Validator(SCHEMA, format_checker=FormatChecker(formats=["date"]))


def full() -> Json:
    """A file in which every key is there."""
    one = failure("x", source="s")
    spans = [{"start": "2026-01-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"}]
    data = file(one, decisions=[decision("D", one)], orders=[order("O")], measured_spans=spans)
    data["contract"]["terminated"] = None
    data["terms"] = [terms()]
    return data


def changed(path: str, value: Any) -> Json:  # Any: JSON
    """The full file with another value at $.path; a key of ... takes it away."""
    data = full()
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = data
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return data


def dollar(path: str) -> str:
    return "$" + "".join(f"[{s}]" if s.isdigit() else f".{s}" for s in path.split("."))


def test_the_published_schema_is_the_one_of_the_reader() -> None:
    assert schema() == SCHEMA
    Draft202012Validator.check_schema(SCHEMA)


def test_the_full_file_fits_both() -> None:
    assert FITS.is_valid(full())
    assert replay.file_read(json.dumps(full()).encode()).year == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12))
def test_random_files_fit_both(seed: int, many: int) -> None:
    data = random_file(seed, many)
    FITS.validate(data)
    assert replay.file_read(json.dumps(data).encode()).year == data["year"]


def every_place(tree: Any, path: str = "") -> list[str]:  # Any: JSON
    keys = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, value in keys:
        here = f"{path}.{key}" if path else str(key)
        found.append(here)
        if isinstance(value, dict | list):
            found += every_place(value, here)
    return found


@pytest.mark.parametrize("path", every_place(full()))
@pytest.mark.parametrize("value", [{"no": 1}, [[]], -1, True, "nothing that fits", 1.5, None, ...])
def test_schema_and_reader_refuse_the_same(path: str, value: Any) -> None:  # Any: JSON
    """Every place of the file with a value of every kind: both take it, or both refuse it."""
    last = path.split(".")[-1]
    if last.isdigit() and value is ...:
        value = "nothing that fits"
    data = changed(path, value)
    taken, code = True, ""
    try:
        replay.file_read(json.dumps(data).encode())
    except replay.FileRefused as error:
        taken, code = False, error.code
    # Which zones there are depends on the machine: no schema can say it.
    assert taken == FITS.is_valid(data) or code == "unknown_zone"


COUNTS_AND_MONEY = [
    "year",
    "terms.0.target.numerator",
    "terms.0.credit_rate_bp",
    "terms.0.grace_days",
    "failures.0.clock_uncertainty_ms",
    "failures.0.resumed.recomputed_committed_steps",
    "orders.0.amount_minor",
    "orders.0.year",
]


@pytest.mark.parametrize("path", COUNTS_AND_MONEY)
@pytest.mark.parametrize("number", ["1.0", "1e3", "1E0", "0.5", "NaN", "Infinity", "-Infinity"])
def test_a_float_for_money_or_a_count_is_refused(path: str, number: str) -> None:
    text = json.dumps(changed(path, "HERE")).replace('"HERE"', number)
    assert refused(text.encode()) == ("invalid_field", dollar(path))


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("contract.zone", "Mars/Olympus", "unknown_zone"),
        ("contract.zone", "../etc/passwd", "unknown_zone"),
        ("contract.currency", "USX", "unknown_currency"),
        ("contract.currency", "usd", "unknown_currency"),
        ("contract.currency", "XXX", "unknown_currency"),
        ("orders.0.currency", "EURO", "unknown_currency"),
        ("contract.start", "2026-02-29", "impossible_date"),
        ("contract.start", "2026-1-1", "invalid_field"),
        ("contract.start", "2026-01-01T00:00:00Z", "invalid_field"),
        ("terms.0.effective_from", "2026-13-01", "impossible_date"),
        ("as_of", "2026-02-30T00:00:00Z", "impossible_date"),
        ("as_of", "2026-01-01T00:00:00", "invalid_field"),
        ("as_of", "2026-01-01", "invalid_field"),
        ("as_of", "2026-01-01T24:00:00Z", "invalid_field"),
        ("as_of", "2026-01-01T00:00:60Z", "invalid_field"),
        ("as_of", "2026-01-01T00:00:00.0000001Z", "invalid_field"),
        ("as_of", "2026-01-01T00:00:00Z\n", "impossible_date"),
        ("as_of", "0001-01-01T00:00:00+01:00", "impossible_date"),
        ("failures.0.steady_at", "2026-06-31T00:00:00Z", "impossible_date"),
        ("failures.0.resumed.recorded", "2026-06-31T00:00:00Z", "impossible_date"),
        ("failures.0.cause_class", "weather", "invalid_field"),
        ("failures.0.resumed.mechanism", "magic", "invalid_field"),
        ("failures.0.clock_uncertainty_ms", -1, "invalid_field"),
        ("terms.0.operator", ">", "invalid_field"),
        ("terms.0.target.denominator", 0, "invalid_field"),
        ("orders.0.amount_minor", "1", "invalid_field"),
        ("orders.0.year", None, "invalid_field"),
        ("year", 0, "invalid_field"),
        ("decisions.0.kind", "merge", "invalid_field"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(
    path: str,
    value: Any,  # Any: JSON
    code: str,
) -> None:
    assert refused(changed(path, value)) == (code, dollar(path))


def test_unknown_and_missing_keys_are_refused() -> None:
    assert refused(full() | {"note": "x"}) == ("unknown_field", "$")
    assert refused(changed("failures.0.job", ...)) == ("missing_field", "$.failures[0]")
    assert refused(changed("orders", ...)) == ("missing_field", "$")


@pytest.mark.parametrize(
    ("raw", "code", "path"),
    [
        (b"", "malformed", "$"),
        (b"{", "malformed", "$"),
        (b'"\xff"', "malformed", "$"),
        (b"[" * 100_000, "malformed", "$"),
        (b"[]", "invalid_field", "$"),
        (b'{"year": 1, "year": 1}', "duplicate_key", "$"),
        (
            b'{"terms": [{"target": {"a": 1, "b": 2, "a": 1}}]}',
            "duplicate_key",
            "$.terms[0].target",
        ),
        (b'{"year": 1' + b"0" * 1000 + b"}", "invalid_field", "$.year"),
        (b'{"orders": [{"id": "\\ud800"}]}', "malformed", "$.orders[0].id"),
        (b'{"\\ud800": 1}', "malformed", "$"),
    ],
)
def test_what_is_no_plain_json_is_refused(raw: bytes, code: str, path: str) -> None:
    assert refused(raw) == (code, path)


@pytest.mark.parametrize(
    "instant",
    [
        "2026-03-01T12:00:00Z",
        "2026-03-01T12:00Z",
        "2026-03-01T13:00:00+01:00",
        "2026-03-01T13:00:00+01",
        "2026-03-01T17:30:00.000+0530",
        "2026-03-01T06:30:00.000000-05:30",
    ],
)
def test_an_instant_may_be_written_in_several_ways(instant: str) -> None:
    data = changed("as_of", instant)
    FITS.validate(data)
    book = replay.file_read(json.dumps(data).encode())
    assert book.as_of.isoformat() == "2026-03-01T12:00:00+00:00"


def test_huge_integers_are_taken_as_they_are() -> None:
    big = 10**999
    one = failure("x", resumed=resumed(last_committed_step=big, next_committed_step=big + 1))
    data = file(one, orders=[order("O", amount_minor=big)], terms=terms(credit_rate_bp=big))
    FITS.validate(data)
    found = replay.answer_data(replay.year_evaluated(replay.file_read(json.dumps(data).encode())))
    assert found["covered"] == 1


def test_a_mark_of_byte_order_and_any_order_of_keys_are_taken() -> None:
    data = full()
    keys = list(data)
    random.Random(1).shuffle(keys)
    turned = {key: data[key] for key in keys}
    raw = b"\xef\xbb\xbf" + json.dumps(turned, ensure_ascii=False).encode()
    assert replay.file_read(raw) == replay.file_read(json.dumps(data).encode())


def test_the_first_and_the_last_day_of_the_calendar_may_be_named() -> None:
    zone = {"zone": "Asia/Tokyo"}
    since = file(contract=zone, terms=terms(effective_from="0001-01-01"))
    found = replay.year_evaluated(replay.file_read(json.dumps(since).encode()))
    assert found.outcome == "met_no_events"
    assert refused(file(contract={"start": "9999-12-31"})) == ("year_unknown", "$.year")
    assert refused(file(contract=zone | {"start": "0001-01-01"})) == ("year_unknown", "$.year")
