"""Gradient accumulation as the platform sees it: the setting, the plan inside a step, the evidence."""

from __future__ import annotations

import pytest

from agent import protocol
from agent.protocol import Position
from jobs.models import Incident, Migration
from jobs.reconcile import reconcile_all
from jobs.recovery import Plan, plan
from jobs.states import Verdict
from jobs.verification import Commit, redone_words

from .situations import at, blocked, dead, silent, situation
from .world import World, who

SEVEN = {"micro": [(185, 6), (185, 7)], "drawn_step": 185, "drawn": 8, "drawn_hash": "d8"}
SIX = {"micro": [(185, 5), (185, 6)], "drawn_step": 185, "drawn": 7, "drawn_hash": "d7"}


def planned(*positions: Position) -> Plan:
    """Ranks 0 and 1 live, rank 2 is dead and in custody."""
    first, second, third = positions
    decision = plan(situation(blocked(0, first), blocked(1, second), dead(2, third)))
    assert isinstance(decision, Plan)
    return decision


def test_the_ranks_go_on_after_the_last_micro_batch_that_all_have_kept() -> None:
    decision = planned(at(184, **SEVEN), at(184, **SEVEN), at(184, **SIX))

    assert (decision.resume_at, decision.resume_micro) == (184, 6)
    assert "all ranks go on in step 185 after its micro-batch 6" in decision.reason
    (move,) = decision.moves
    assert (move.drawn, move.drawn_hash) == (7, "d7")


def test_one_rank_that_has_kept_none_makes_all_compute_the_step_again() -> None:
    decision = planned(at(184, **SEVEN), at(184, **SEVEN), at(184, drawn_step=185, drawn=7))

    assert decision.resume_micro == 0
    assert "of rank 2 none is kept where its state is taken from" in decision.reason


def test_micro_batches_of_a_step_that_was_committed_meanwhile_count_for_nothing() -> None:
    decision = planned(
        at(185, **SEVEN), at(185, **SEVEN), at(184, applying=185, applied=185, **SIX)
    )

    assert (decision.resume_at, decision.resume_micro) == (185, 0)
    assert "micro-batch" not in decision.reason


def test_what_is_left_of_a_committed_step_is_finished_from_its_last_kept_micro_batch() -> None:
    went_on = at(185, drawn_step=185, drawn=8)
    decision = planned(went_on, went_on, at(184, applying=185, applied=185, **SEVEN))

    (move,) = decision.moves
    assert (decision.resume_at, decision.resume_micro) == (185, 0)
    assert (move.finish, move.finish_micro, move.drawn) == ("tail", 7, 0)


def test_a_lost_node_takes_its_micro_batches_along() -> None:
    group = frozenset({0, 1, 2})
    holds = {"holds": {"2": [185, 184]}}
    members = (
        blocked(0, at(184, **SEVEN, **holds), replica_group=group),
        blocked(1, at(184, **SEVEN), replica_group=group),
        silent(2, replica_group=group),
    )
    decision = plan(situation(*members))

    assert isinstance(decision, Plan)
    assert decision.resume_micro == 0
    assert "the micro-batches of step 185 are computed again: of rank 2" in decision.reason
    (move,) = decision.moves
    assert (move.source, move.drawn) == ("replica", None)


def test_how_much_was_computed_again_is_said_in_words() -> None:
    def commit(rank: int, redone: int | None) -> Commit:
        return Commit(
            rank=rank, step=185, previous_step=184, heads={}, batch_hash="",
            redone_batch_hash="", replica_digest="", pause_ms=None, redone_micro_batches=redone,
        )  # fmt: skip

    words = redone_words([commit(0, 8), commit(1, 1), commit(2, 8), commit(3, None)])

    assert words == (
        "rank 1 computed 1 micro-batch again; ranks 0, 2 computed 8 micro-batches again; "
        "of rank 3 nobody knows how many were computed again"
    )


@pytest.mark.django_db
@pytest.mark.parametrize("setting", ["redo", "keep"])
def test_the_setting_travels_from_submission_to_every_agent(world: World, setting: str) -> None:
    world.submit(accumulation=setting)
    reconcile_all()
    orders = [body for agent in world.agents for body in agent.take(protocol.LaunchOrder)]

    assert {body.accumulation for body in orders} == {setting}


@pytest.mark.django_db
def test_the_measured_cost_of_keeping_is_kept_with_the_jobs_costs(world: World) -> None:
    job = world.trained(accumulation="keep")
    told = {"micro_batch_bytes": 4096.0, "micro_batch_store_ms": 0.3, "micro_batch_agree_ms": 0.2}
    worker = world.rank(job, 0)
    world.agent_of(worker).report(protocol.RankCosts(**who(worker), rank=0, step=185, costs=told))
    job.refresh_from_db()

    assert job.costs == {**told, "step": 185}


@pytest.mark.django_db
def test_a_rank_lost_inside_a_step_is_healed_there_and_the_evidence_says_what_was_redone(
    world: World,
) -> None:
    job = world.trained(accumulation="keep")
    world.kill(job, 2, at(184, **SIX))
    for rank in (0, 1):
        world.block(job, rank, at(184, **SEVEN))
    orders = world.regroup(job)
    adopts = [r for body in orders.values() for r in body.roles if isinstance(r, protocol.Adopt)]
    world.transfer(job, orders)
    # The torn step had drawn 7 of 8 batches: its hash is not the whole step's.
    torn = {"redone_batch_hash": "d7", "redrawn_batch_hash": "d7", "redone_micro_batches": 1}
    world.rejoin_and_commit(job, **torn)
    incident = Incident.objects.get(job=job)

    assert {body.resume_micro for body in orders.values()} == {6}
    assert [(adopt.drawn, adopt.drawn_hash) for adopt in adopts] == [(7, "d7")]
    assert "after its micro-batch 6" in Migration.objects.get(job=job).reason
    assert incident.verdict == Verdict.COVERED
    assert [c["redone_micro_batches"] for c in incident.evidence["commits"]] == [1, 1, 1]
    words = incident.evidence["redone_micro_batches"]
    assert words == "ranks 0, 1, 2 computed 1 micro-batch again"


@pytest.mark.django_db
def test_other_batches_than_those_of_the_torn_step_are_missed(world: World) -> None:
    job = world.trained(accumulation="keep")
    world.kill(job, 2, at(184, **SIX))
    for rank in (0, 1):
        world.block(job, rank, at(184, **SEVEN))
    world.transfer(job, world.regroup(job))
    world.rejoin_and_commit(job, redone_batch_hash="d7", redrawn_batch_hash="other")

    assert Incident.objects.get(job=job).verdict == Verdict.MISSED
