"""The planner for shards: whole ranks kept by a buddy, and every pair of lost nodes of a 2x3 HSDP job."""

from __future__ import annotations

from itertools import combinations

import pytest

from jobs.recovery import GiveUp, Member, Plan, plan

from .situations import at, blocked, dead, prepared, silent, situation, standby, torn

ALONE = frozenset({2})


@pytest.mark.parametrize(
    ("shards", "copies", "finish"),
    [
        pytest.param(
            [185], [185, 186], "none", id="the step whole, its private state in the next copy"
        ),
        pytest.param([184, 185], [185], "tail", id="the step's shard, its private state torn"),
        pytest.param([184], [185], "apply", id="the shard before and the gradients"),
        pytest.param([184], [184, 185], "apply", id="the same with an older copy beside it"),
    ],
)
def test_a_lost_node_of_a_pure_shard_comes_back_from_its_buddy(
    shards: list[int], copies: list[int], finish: str
) -> None:
    keeper = blocked(0, at(185, holds={"2": copies}, shards={"2": shards}))
    decision = plan(situation(keeper, blocked(1, at(185)), silent(2, replica_group=ALONE)))

    assert isinstance(decision, Plan)
    (move,) = decision.moves
    assert (move.source, move.finish) == ("buddy", finish)
    (stream,) = move.streams
    assert (stream.holder, stream.what, stream.source_rank) == ("buddy", "all", 0)
    assert move.passed_over[-1] == "shadow: its agent cannot be asked or holds none"


@pytest.mark.parametrize(
    ("shards", "copies"), [([183], [184, 185]), ([184], [184]), ([185], [184]), ([], [185])]
)
def test_a_buddys_copy_that_cannot_be_brought_to_the_step_is_passed_over(
    shards: list[int], copies: list[int]
) -> None:
    keeper = blocked(0, at(185, holds={"2": copies}, shards={"2": shards} if shards else {}))
    decision = plan(situation(keeper, blocked(1, at(185)), silent(2, replica_group=ALONE)))

    assert isinstance(decision, GiveUp)
    words = decision.passed_over[2][-1]
    assert words.startswith("buddy: ")
    assert ("no other node keeps" in words) == (not shards)


def test_a_process_torn_on_a_live_node_is_healed_there_before_its_buddy_is_asked() -> None:
    keeper = blocked(0, at(185, holds={"2": [185]}, shards={"2": [184]}))
    lost = dead(2, torn(185, has_gradients=True, shadow=184), replica_group=ALONE)
    decision = plan(situation(keeper, blocked(1, prepared(185)), lost))

    assert isinstance(decision, Plan)
    assert [move.source for move in decision.moves] == ["shadow"]


def test_the_agent_of_a_dead_keeper_is_asked_too() -> None:
    keeper = dead(0, at(185, holds={"2": [185]}, shards={"2": [184]}), replica_group=frozenset({0}))
    lost = silent(2, replica_group=ALONE)
    spares = (standby(8), standby(9))
    decision = plan(situation(keeper, blocked(1, at(185)), lost, spares=spares))

    assert isinstance(decision, Plan)
    assert {move.rank: move.source for move in decision.moves} == {0: "custody", 2: "buddy"}


def _hsdp(lost: tuple[int, ...]) -> list[Member]:
    """Six ranks, 2 x 3: rank r holds the shard of rank r ± 3, and its private copy is with rank r + 1."""
    members = []
    for rank in range(6):
        group = frozenset({rank % 3, rank % 3 + 3})
        holds = {str((rank - 1) % 6): [185, 186]}
        alive = blocked(rank, at(185, holds=holds), replica_group=group)
        members.append(silent(rank, replica_group=group) if rank in lost else alive)
    return members


@pytest.mark.parametrize("pair", list(combinations(range(6), 2)))
def test_two_lost_nodes_are_survived_where_a_replica_and_a_copy_are_left(
    pair: tuple[int, int],
) -> None:
    spares = (standby(8), standby(9))
    decision = plan(situation(*_hsdp(pair), spares=spares))

    shard_gone = pair[1] - pair[0] == 3
    copy_gone = pair[1] - pair[0] in (1, 5)
    if shard_gone or copy_gone:
        assert isinstance(decision, GiveUp)
        assert decision.code == "no_source"
        words = "; ".join(text for lines in decision.passed_over.values() for text in lines)
        assert ("no rank that holds its shard has survived" in words) == shard_gone
        assert ("neither in custody nor with a buddy" in words) == copy_gone
    else:
        assert isinstance(decision, Plan)
        assert {move.rank: move.source for move in decision.moves} == dict.fromkeys(pair, "replica")
