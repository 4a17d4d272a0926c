"""What the failover benchmark makes of its cases: a figure that was not measured is none."""

from __future__ import annotations

from typing import Any

import pytest

from bench.failover import Unmeasured, _measured, _stages
from demo.report import Case


def case(**fields: Any) -> Case:
    values: dict[str, Any] = {
        "name": "kill",
        "parallelism": "ddp",
        "source": "custody",
        "pause_ms": 800.0,
        "lost_steps": 0,
        "world_size_before": 3,
        "world_size_after": 3,
        "identical": True,
        "verdict": "covered",
        "incident_id": 7,
        "ledger_entry_id": 1,
        **fields,
    }
    return Case(**values)


def migration(state: str, seconds: int) -> dict[str, Any]:
    began, ended = "2026-01-01T00:00:00+00:00", f"2026-01-01T00:00:0{seconds}+00:00"
    stage = {"name": "transfer", "began_at": began, "ended_at": ended}
    return {"state": state, "stages": [stage]}


def test_measured_cases_give_their_pauses_and_the_worst_loss() -> None:
    assert _measured([case(), case(pause_ms=900.0)]) == ([800.0, 900.0], 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pause_ms": None}, "incident 7 has no pause"),
        ({"lost_steps": None}, "incident 7 does not say what was lost"),
        ({"verdict": "missed"}, "incident 7 is missed, not covered"),
        ({"verdict": "no entry"}, "incident 7 is no entry, not covered"),
    ],
)
def test_a_kill_that_was_not_measured_ends_the_benchmark(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(Unmeasured, match=words):
        _measured([case(), case(**fields)])


def test_the_stages_are_those_of_the_migration_that_came_to_its_end() -> None:
    incident = {"id": 7, "migrations": [migration("failed", 9), migration("done", 2)]}
    assert _stages([incident]) == {"transfer": 2000.0}


def test_an_incident_without_a_migration_that_is_done_has_no_stages_to_measure() -> None:
    with pytest.raises(Unmeasured, match="incident 7 has no migration that is done"):
        _stages([{"id": 7, "migrations": [migration("failed", 9)]}])
