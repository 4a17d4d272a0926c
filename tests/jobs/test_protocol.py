"""The commit rule and the ladder, asked at every end that a generation can come to (tests/jobs/protocol).

One failure is walked here, two of up to four ranks with ``python -m tests.jobs.protocol``: minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from agent.protocol import Position
from jobs.recovery import planner
from jobs.recovery.planner import Member, Situation
from jobs.recovery.positions import began

from .protocol.explorer import explore
from .protocol.machine import Rules, Violation

LAST = 2
"""From fence(1): all of step 2, and of step 3 what may be done before its vote is known."""


@pytest.mark.parametrize("shadow", [False, True], ids=["replica", "shadow"])
@pytest.mark.parametrize(("size", "failures"), [(2, 1), (3, 1)])
def test_no_end_of_a_generation_leads_to_a_mixed_lost_or_doubled_step(
    size: int, failures: int, shadow: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explore(Rules(size, shadow, LAST), step=1, failures=failures)
    with capsys.disabled():
        ends = {generation: len(seen) for generation, seen in found.ends.items()}
        print(f"\n{size} ranks, {failures} failures: {found.num_states} states, ends {ends}")
    assert found.num_plans > 0
    assert found.sources.keys() == {"custody", "shadow" if shadow else "replica"}
    # With one failure only the loss of a node takes a pure shard along: nobody else holds it.
    assert bool(found.given_up) == shadow


@pytest.mark.parametrize("shadow", [False, True], ids=["replica", "shadow"])
def test_leading_one_rank_at_a_time_leaves_out_no_end(shadow: bool) -> None:
    rules = Rules(2, shadow, LAST)
    reduced = explore(rules, step=1, failures=1)
    every = explore(rules, step=1, failures=1, every_order=True)
    assert every.num_states > reduced.num_states
    assert reduced.ends == every.ends


def _least(positions: Iterable[Position]) -> int:
    return min((began(position) for position in positions), default=0)


def _prepared(positions: Iterable[Position]) -> int:
    return max((max(began(p), p.prepared) for p in positions), default=0)


def _of_the_living(situation: Situation) -> list[Position]:
    members: Iterable[Member] = situation.members
    return [m.position for m in members if m.condition == "blocked" and m.position is not None]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        pytest.param("commit_rule", _least, id="the least instead of the greatest"),
        pytest.param("commit_rule", _prepared, id="what is only prepared counts"),
        pytest.param("reachable_positions", _of_the_living, id="custody is not asked"),
    ],
)
@pytest.mark.parametrize("shadow", [False, True], ids=["replica", "shadow"])
def test_a_wrong_commit_rule_is_found_out(
    monkeypatch: pytest.MonkeyPatch, shadow: bool, name: str, wrong: Callable[..., object]
) -> None:
    monkeypatch.setattr(planner, name, wrong)
    with pytest.raises(Violation):
        explore(Rules(2, shadow, LAST), step=1, failures=1)
