"""``yoco guarantee replay``: what it prints, how it ends, that it needs no database and no patience."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sla import replay
from sla.currencies import DECIMALS, money
from yoco_platform import cli

from .files import Json, evaluated, failure, file, missed, order, terms
from .oracle import text_of, us

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "docs" / "schemas" / "guarantee-replay.example.json"

TEXT = """\
Contract year 1, 2025-12-31T23:00:00Z up to 2026-12-31T23:00:00Z (not included), as known at \
2027-03-01T00:00:00Z
Outcome: short
Terms: version 1, in force at the first instant of the year
Recorded: 3 = 1 qualifying + 1 excluded + 0 unsupported + 0 averted + 1 merged + 0 awaiting
  excluded as customer_cause: 1
Qualifying: 1 = 0 covered + 1 missed
Test: covered × 100 ≥ 90 × qualifying, 0 ≥ 90, does not hold
Coverage: 0.00 %, cut off
Short by 1: so many of the missed would have had to be covered
Measured time: 99.72 % of the year so far, cut off; the terms ask for 95.00 %
Credit: 250.03 USD = 25.00 % of fees of failed year, 1000.10 USD, rounded once (half_up)
Missed: INC-1 (progress_lost): INC-2, which belongs to it: step 901 followed step 1000; 100 committed steps \
were computed again; a checkpoint was read; the evidence does not show that nothing was lost; resolved by \
checkpoint_restart, and the terms ask for live migration
Every failure with its verdict and its rule: --json, under lines.
"""


def saved(tmp_path: Path, data: Json) -> str:
    path = tmp_path / "year.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_the_example_is_told_with_its_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["guarantee", "replay", str(EXAMPLE)]) == 0
    assert capsys.readouterr().out == TEXT


def test_the_example_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["guarantee", "replay", str(EXAMPLE), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == evaluated(json.loads(EXAMPLE.read_text()))
    assert told["credit"] == {
        "basis_points": 2500,
        "base_minor": 100_010,
        "amount_minor": 25_003,
        "currency": "USD",
        "state": "priced",
    }


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (file(year=0), "invalid_field $.year: "),
        (file(contract={"zone": "[red]"}), "unknown_zone $.contract.zone: [red] is no"),
        (file() | {"\x1b[2J": 1}, "unknown_field $: Object contains unknown field `\\x1b[2J`"),
    ],
)
def test_a_bad_file_ends_with_one_and_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: Json, said: str
) -> None:
    assert cli.main(["guarantee", "replay", saved(tmp_path, data), "--json"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(said)
    assert told.err.count("\n") == 1


def test_a_file_that_is_not_there_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["guarantee", "replay", "/nowhere.json"]) == 1
    assert capsys.readouterr().err == "no_file /nowhere.json: No such file or directory\n"


def test_a_blocked_year_and_a_bad_decision_end_with_nought(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = file(failure("x\x1b"), terms=terms(rounding=None))
    assert cli.main(["guarantee", "replay", saved(tmp_path, blocked)]) == 0
    told = capsys.readouterr().out
    assert "blocked by terms version 1: rounding is empty" in told
    assert cli.main(["guarantee", "replay", saved(tmp_path, file(terms=[]))]) == 0
    assert "Nothing else can be counted without terms." in capsys.readouterr().out


def told(data: Json) -> str:
    book = replay.file_read(json.dumps(data).encode())
    return replay.answer_text(replay.year_evaluated(book))


def test_text_says_what_is_unknown_instead_of_a_number() -> None:
    assert "Coverage: n/a (0 of 0)" in told(file())
    assert "Measured time: the year has not begun" in told(file(as_of="2025-01-01T00:00:00Z"))
    assert "Test: none, the terms have no target" in told(file(terms=terms(target="")))
    unpriced = terms(credit_base="next_renewal")
    assert "unpriced: no such order is signed yet" in told(file(missed("m"), terms=unpriced))
    capped = told(file(missed("m"), terms=terms(credit_cap_minor=5), orders=[order("O")]))
    assert "Credit: 0.05 USD = 25.00 %" in capped
    assert "capped at 0.05 USD" in capped


def test_text_from_the_file_cannot_command_the_terminal() -> None:
    text = told(file(missed("x\x1b[2J\nOutcome: met")))
    assert "\x1b" not in text
    assert "Missed: x\\x1b[2J\\nOutcome: met (" in text


@pytest.mark.parametrize(
    ("minor", "currency", "shown"),
    [(5, "USD", "0.05 USD"), (12345, "JPY", "12345 JPY"), (1234, "KWD", "1.234 KWD")],
)
def test_money_is_shown_in_the_units_of_its_currency(minor: int, currency: str, shown: str) -> None:
    assert money(minor, currency) == shown
    assert len(DECIMALS) == 171


def test_no_table_and_no_settings_are_needed() -> None:
    program = (
        "import sys; from sla import replay; "
        f"data = open({str(EXAMPLE)!r}, 'rb').read(); "
        "assert replay.year_evaluated(replay.file_read(data)).outcome == 'short'; "
        "print([name for name in sys.modules if name.endswith('.models') and name[:6] != 'django'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def large(kind: str, many: int) -> Json:
    """The shapes that could be slow: one job that never gets steady, one instant, every cause its own."""
    base, failures = failure("x", job="llm", root_cause="r"), []
    first = us("2026-01-01T00:00:00Z")
    for n in range(many):
        at = text_of(first + (0 if kind == "one_instant" else n * 300 * 10**6))
        one = base | {"id": f"F{n}", "occurred": at, "recorded": at}
        if kind == "own_causes":
            one |= {"root_cause": f"r{n}", "steady_at": None}
        else:
            one["steady_at"] = "2026-06-01T00:00:00Z"
        failures.append(one)
    return file(*failures)


@pytest.mark.parametrize("kind", ["one_instant", "own_causes"])
def test_no_shape_of_a_year_is_compared_pair_by_pair(kind: str) -> None:
    """Processor time, with room for a busy machine: every pair of these would take minutes."""
    data = json.dumps(large(kind, 30_000)).encode()
    began = time.process_time()
    found = replay.answer_data(replay.year_evaluated(replay.file_read(data)))
    assert time.process_time() - began < 20
    grouped = {"one_instant": 1, "own_causes": 30_000}
    assert (found["recorded"], found["covered"]) == (30_000, grouped[kind])


def test_a_hundred_thousand_failures_of_one_job_take_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, large("one_job", 100_000))
    began = time.process_time()
    assert cli.main(["guarantee", "replay", path, "--json"]) == 0
    assert time.process_time() - began < 40
    found = json.loads(capsys.readouterr().out)
    steady_from = 151 * 86_400 // 300
    covered = 1 + -(-(100_000 - steady_from) // 6)
    assert (found["recorded"], found["covered"]) == (100_000, covered)
