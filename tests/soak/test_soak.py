"""The short versions of ``make soak``: a handful of kills around the vote, a handful of disasters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.protocol import Position
from jobs.recovery import Plan, plan
from tests.engine.harness import Hatchery, Story
from tests.jobs.situations import blocked, dead, situation

from .allowed import disagreements
from .disasters import around_the_vote, of_every_kind
from .runner import Outcome, Run, leaks

SEED = 20
GROUP = frozenset({0, 1, 2})
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def hatchery() -> Iterator[Hatchery]:
    started = Hatchery()
    yield started
    started.close()


@pytest.mark.parametrize(("kind", "number"), [("ddp", 6), ("fsdp2", 3)])
def test_kills_around_the_vote_are_decided_as_the_model_allows(
    hatchery: Hatchery, tmp_path: Path, kind: str, number: int
) -> None:
    disasters = around_the_vote(SEED, number, ranks=3)
    outcome = Run(hatchery, tmp_path, disasters, kind).go(timeout_s=250)
    assert len(outcome.decisions) == number
    assert disagreements(outcome.decisions, shadow=kind == "fsdp2") == []
    assert outcome.differences() == []


def test_a_job_goes_through_disasters_of_every_kind(hatchery: Hatchery, tmp_path: Path) -> None:
    disasters = of_every_kind(SEED, 6, ranks=3, nodes=True)
    outcome = Run(hatchery, tmp_path, disasters, "ddp").go(timeout_s=250)
    assert outcome.generations == disasters[-1].generation + 1 + (
        disasters[-1].extra in ("adopting", "second")
    )
    assert outcome.differences() == []
    assert leaks(outcome) == []


def test_a_story_that_differs_in_one_bit_and_a_decision_that_no_model_knows_are_told() -> None:
    true, wrong = Story({(0, 1): ("a", "a", "h")}, {}), Story({(0, 1): ("b", "a", "h")}, {})
    outcome = Outcome(wrong, true, 1, [], [], [], 0)
    assert "rank 0 step 1: digests differ" in outcome.differences()

    lost = Position(fence=4, prepared=5, applying=4, applied=4)
    ahead = Position(fence=6, prepared=6, applying=6, applied=6)
    known = situation(blocked(0, lost), blocked(1, lost), dead(2, lost, replica_group=GROUP))
    never = situation(blocked(0, ahead), blocked(1, lost), dead(2, lost, replica_group=GROUP))
    decision = plan(known)
    assert isinstance(decision, Plan)
    assert disagreements([(known, decision)], shadow=False) == []
    (words, step) = disagreements([(never, decision)], shadow=False)
    assert words.startswith("not among the ends of the model")
    assert step == "resume at 4, applied 6, voted 6"
