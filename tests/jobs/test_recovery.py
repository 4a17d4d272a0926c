from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.protocol import Position
from jobs.recovery import (
    Failure,
    GiveUp,
    Kept,
    Member,
    MovePlan,
    Plan,
    Situation,
    Wait,
    commit_rule,
    plan,
)

from .situations import (
    FINGERPRINT,
    applied_not_fenced,
    at,
    blocked,
    dead,
    place,
    prepared,
    silent,
    situation,
    standby,
    torn,
)

GROUP = frozenset({0, 1, 2})
ALONE = frozenset({2})


def planned(given_situation: Situation) -> Plan:
    decision = plan(given_situation)
    assert isinstance(decision, Plan), decision
    return decision


def the_move(given_situation: Situation) -> MovePlan:
    decision = planned(given_situation)
    assert len(decision.moves) == 1
    return decision.moves[0]


def streams(move: MovePlan) -> list[tuple[str, str, int]]:
    return [(s.holder, s.what, s.place.node_id) for s in move.streams]


# --- The commit rule --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positions", "committed"),
    [
        pytest.param([], 0, id="nobody can be asked"),
        pytest.param([Position()], 0, id="before everything"),
        pytest.param([at(0, applying=-1, applied=-1)], 0, id="protected, nothing applied"),
        pytest.param([at(184), prepared(185)], 184, id="nobody has begun to apply"),
        pytest.param([at(184), torn(185)], 185, id="one has begun"),
        pytest.param([prepared(185), applied_not_fenced(185)], 185, id="one has applied"),
        pytest.param([at(185), prepared(185)], 185, id="one is a fence ahead"),
    ],
)
def test_the_step_is_committed_once_anybody_began_to_apply_it(
    positions: list[Position], committed: int
) -> None:
    assert commit_rule(positions) == committed


def test_what_only_an_unreachable_rank_had_applied_is_ignored() -> None:
    lost = dead(2, at(185), custody="unavailable", replica_group=GROUP)
    holder = blocked(0, at(184, holds={"2": [184, 185]}))
    decision = planned(situation(holder, blocked(1, at(184)), lost))

    assert decision.resume_at == 184


def test_what_a_dead_rank_in_custody_had_applied_is_committed() -> None:
    decision = planned(
        situation(blocked(0, prepared(185)), blocked(1, prepared(185)), dead(2, at(185)))
    )

    assert decision.resume_at == 185
    assert decision.stay == {0: "w0", 1: "w1"}


# --- One lost rank: what the ladder takes -----------------------------------------------------------


@pytest.mark.parametrize(
    ("survivors", "lost", "source", "finish", "served"),
    [
        pytest.param(
            at(184), dead(2, at(184)), "custody", "none", [("custody", "all", 2)],
            id="custody stands at the fence",
        ),
        pytest.param(
            at(184), dead(2, prepared(185)), "custody", "none", [("custody", "all", 2)],
            id="custody was one step on in computing",
        ),
        pytest.param(
            at(185), dead(2, applied_not_fenced(185)), "custody", "tail", [("custody", "all", 2)],
            id="custody died in the tail",
        ),
        pytest.param(
            at(185), dead(2, prepared(185, gradients=True)), "custody", "apply",
            [("custody", "all", 2)], id="custody had its gradients and had not begun",
        ),
        pytest.param(
            at(185), dead(2, prepared(185), replica_group=GROUP), "replica", "tail",
            [("replica", "shared", 0), ("custody", "private", 2)],
            id="others had applied, it had not and kept no gradients",
        ),
        pytest.param(
            at(185), dead(2, torn(185), replica_group=GROUP), "replica", "tail",
            [("replica", "shared", 0), ("custody", "private", 2)],
            id="torn inside the optimizer, a replica stands at the step",
        ),
        pytest.param(
            prepared(185), dead(2, torn(185), replica_group=GROUP), "replica", "tail",
            [("replica", "shared", 0), ("custody", "private", 2)],
            id="torn, and the replica will come to the step",
        ),
        pytest.param(
            at(185), dead(2, torn(185, has_gradients=True, shadow=184), replica_group=ALONE),
            "shadow", "apply", [("shadow", "all", 2)], id="torn without a replica: shadow",
        ),
    ],
)  # fmt: skip
def test_the_first_complete_source_is_taken(
    survivors: Position, lost: Member, source: str, finish: str, served: list[Any]
) -> None:
    move = the_move(situation(blocked(0, survivors), blocked(1, survivors), lost))

    assert (move.source, move.finish) == (source, finish)
    assert streams(move) == served
    assert (move.rank, move.to_worker) == (2, "s9")


@pytest.mark.parametrize(
    ("holds", "step", "finish"),
    [
        pytest.param([184, 185], 184, "none", id="the copy holds the step after: its fence part"),
        pytest.param([184], 184, "tail", id="the copy holds the step itself"),
        pytest.param([185], 184, "none", id="only the step after"),
    ],
)
def test_a_lost_node_comes_back_from_a_replica_and_its_buddys_copy(
    holds: list[int], step: int, finish: str
) -> None:
    buddy = blocked(1, at(step, holds={"2": holds}))
    move = the_move(situation(blocked(0, at(step)), buddy, silent(2, replica_group=GROUP)))

    assert (move.source, move.finish) == ("replica", finish)
    assert streams(move) == [("replica", "shared", 0), ("buddy", "private", 1)]
    assert move.passed_over == ("live: not heard", "custody: its agent is silent")


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        pytest.param(silent(2, replica_group=ALONE), "no other rank holds its shard", id="shard gone"),
        pytest.param(silent(2, replica_group=GROUP), "neither in custody nor with a buddy", id="no copy"),
        pytest.param(dead(2, torn(185), replica_group=ALONE), "shadow: none was kept", id="torn"),
        pytest.param(
            dead(2, torn(185, shadow=183), replica_group=ALONE), "it is of step 183", id="old shadow"
        ),
        pytest.param(
            dead(2, torn(185, shadow=184), replica_group=ALONE),
            "without the gradients of step 185",
            id="shadow without gradients",
        ),
        pytest.param(
            dead(2, None, custody="unavailable", replica_group=ALONE), "was restarted", id="agent new"
        ),
        pytest.param(
            dead(2, at(180), replica_group=ALONE), "it stands at step 180", id="far behind"
        ),
    ],
)  # fmt: skip
def test_without_a_source_it_gives_up_and_names_every_source_passed_over(
    lost: Member, words: str
) -> None:
    decision = plan(situation(blocked(0, at(185)), blocked(1, at(185)), lost))

    assert isinstance(decision, GiveUp)
    assert decision.code == "no_source"
    assert words in decision.reason
    assert [line.split(":")[0] for line in decision.passed_over[2]] == [
        "live", "custody", "replica", "shadow", "buddy",
    ]  # fmt: skip


# --- Waiting ----------------------------------------------------------------------------------------


def test_it_waits_until_every_rank_has_stopped() -> None:
    decision = plan(situation(blocked(0, at(184)), blocked(1, at(184), condition="running")))

    assert decision == Wait(code="not_all_stopped", reason="rank 1 is not stopped yet")


def test_nothing_starts_elsewhere_when_no_rank_can_be_heard() -> None:
    decision = plan(situation(silent(0, replica_group=GROUP), silent(1, replica_group=GROUP)))

    assert isinstance(decision, Wait)
    assert decision.code == "unreachable"


@pytest.mark.parametrize(
    ("spare", "words"),
    [
        pytest.param(standby(9, warm=False), "still warming", id="cold"),
        pytest.param(standby(9, fingerprint="avx2"), "its numerics differ", id="other numerics"),
        pytest.param(
            standby(9, place=place(9, suspect="node-9 is suspect")),
            "node-9 is suspect",
            id="suspect",
        ),
        pytest.param(standby(9, reachable=False), "its agent is silent", id="silent"),
    ],
)
def test_an_unfit_standby_is_not_taken_and_the_reason_is_given(spare: Any, words: str) -> None:
    decision = plan(situation(blocked(0, at(184)), dead(1, at(184)), spares=(spare,)))

    assert isinstance(decision, Wait)
    assert (decision.code, decision.standbys_missing) == ("no_standby", 1)
    assert words in decision.reason


MIXED = (blocked(0, at(184), fingerprint="avx2"), blocked(1, at(184)))


def test_a_rank_of_mixed_numerics_goes_to_a_standby_with_its_own() -> None:
    lost = (dead(2, at(184), fingerprint="avx2"), dead(3, at(184)))
    spares = (standby(8), standby(9, fingerprint="avx2"))
    decision = plan(situation(*MIXED, *lost, spares=spares))

    assert isinstance(decision, Plan)
    assert {move.rank: move.to_worker for move in decision.moves} == {2: "s9", 3: "s8"}


def test_a_warm_standby_that_fits_other_ranks_only_is_not_taken() -> None:
    lost = (dead(2, at(184), fingerprint="avx2"), dead(3, at(184), fingerprint="avx2"))
    spares = (standby(8), standby(9, fingerprint="avx2"))
    decision = plan(situation(*MIXED, *lost, spares=spares))

    assert isinstance(decision, Wait)
    assert (decision.code, decision.standbys_missing) == ("no_standby", 1)
    assert "standby on node-8: its numerics differ" in decision.reason


def test_with_enough_standbys_the_rank_whose_numerics_are_missing_is_named() -> None:
    lost = (dead(2, at(184), fingerprint="avx2"), dead(3, at(184)))
    decision = plan(situation(*MIXED, *lost, spares=(standby(8), standby(9))))

    assert isinstance(decision, Wait)
    assert decision.reason.startswith("no warm standby has the numerics of rank 2")


def test_a_rank_whose_numerics_nobody_knows_is_not_moved() -> None:
    decision = plan(situation(blocked(0, at(184)), dead(1, at(184), fingerprint="")))

    assert isinstance(decision, Wait)
    assert "the numerics it would have to go on with are not known" in decision.reason


def test_before_the_first_commit_there_is_nothing_to_move() -> None:
    start = at(0, applying=-1, applied=-1)
    decision = plan(situation(blocked(0, start), dead(1, start)))

    assert isinstance(decision, GiveUp)
    assert decision.code == "before_first_commit"


def test_a_broken_group_without_a_lost_rank_moves_nobody() -> None:
    decision = planned(
        situation(blocked(0, at(184)), blocked(1, at(185)), blocked(2, prepared(185)))
    )

    assert decision.moves == ()
    assert decision.stay == {0: "w0", 1: "w1", 2: "w2"}
    assert decision.resume_at == 185


def test_a_live_rank_that_cannot_come_to_the_step_is_replaced() -> None:
    half_restored = blocked(2, Position(), replica_group=GROUP)
    buddy = blocked(1, at(184, holds={"2": [185]}))
    move = the_move(situation(blocked(0, at(184)), buddy, half_restored))

    assert (move.rank, move.source, move.finish) == (2, "replica", "none")


def test_a_live_rank_that_cannot_come_to_the_step_and_has_no_source_is_divergence() -> None:
    decision = plan(
        situation(blocked(0, at(184)), blocked(1, at(180), replica_group=frozenset({1})))
    )

    assert isinstance(decision, GiveUp)
    assert decision.code == "ranks_diverged"


# --- Planned moves ----------------------------------------------------------------------------------


def paused(rank: int, step: int = 184) -> Member:
    return blocked(rank, at(step, prepared=step))


def test_a_planned_move_takes_the_state_from_the_living_worker() -> None:
    move = the_move(situation(paused(0), paused(1), paused(2), leaving=frozenset({2})))

    assert (move.source, move.finish, move.passed_over) == ("live", "none", ())
    assert streams(move) == [("live", "all", 2)]


def test_a_planned_move_without_a_standby_lets_everybody_go_on() -> None:
    cold = standby(9, warm=False)
    decision = planned(situation(paused(0), paused(1), leaving=frozenset({1}), spares=(cold,)))

    assert decision.moves == ()
    assert decision.stay == {0: "w0", 1: "w1"}


def test_the_lost_rank_takes_the_standby_before_the_one_that_only_leaves() -> None:
    decision = planned(situation(paused(0), dead(1, at(184)), paused(2), leaving=frozenset({2})))

    assert [move.rank for move in decision.moves] == [1]
    assert decision.stay == {0: "w0", 2: "w2"}


def live_kept(step: int = 184, **changed: Any) -> Kept:
    fields: dict[str, Any] = {
        "worker_id": "old2", "place": place(2), "position": at(step), "resume_at": step, "live": True,
    }  # fmt: skip
    return Kept(**{**fields, **changed})


def failed_target(**changed: Any) -> Member:
    return dead(2, None, place=place(7), **changed)


def test_after_a_failed_target_the_live_source_serves_the_next_standby() -> None:
    member = failed_target(kept=(live_kept(),))
    move = the_move(situation(paused(0), paused(1), member, failures=(Failure(2, "live"),)))

    assert (move.source, move.to_worker) == ("live", "s9")
    assert streams(move) == [("live", "all", 2)]


def test_after_a_failed_target_and_without_another_standby_the_live_source_goes_on() -> None:
    member = failed_target(kept=(live_kept(),))
    cold = standby(9, warm=False)
    decision = planned(situation(paused(0), paused(1), member, spares=(cold,)))

    assert decision.moves == ()
    assert decision.stay == {0: "w0", 1: "w1", 2: "old2"}


def test_state_kept_for_an_earlier_step_is_refused_once_the_job_has_gone_on() -> None:
    member = failed_target(kept=(live_kept(184),), replica_group=frozenset({2}))
    decision = plan(situation(paused(0, 185), paused(1, 185), member))

    assert isinstance(decision, GiveUp)
    assert "kept for step 184, the job has gone on to 185" in decision.reason


def test_custody_of_the_generation_before_is_asked_again() -> None:
    kept = live_kept(live=False)
    move = the_move(situation(paused(0), paused(1), failed_target(kept=(kept,))))

    assert (move.source, streams(move)) == ("custody", [("custody", "all", 2)])


# --- Next source, next target -----------------------------------------------------------------------


def test_the_next_source_is_tried_after_one_has_failed() -> None:
    lost = dead(2, at(184), replica_group=GROUP)
    move = the_move(
        situation(blocked(0, at(184)), blocked(1, at(184)), lost, failures=(Failure(2, "custody"),))
    )

    assert move.source == "replica"
    assert "custody: failed 1 times in this incident" in move.passed_over


def test_the_only_source_is_tried_again_but_not_for_ever() -> None:
    lost = dead(2, at(184), replica_group=ALONE)
    others = (blocked(0, at(184)), blocked(1, at(184)))

    again = plan(situation(*others, lost, failures=(Failure(2, "custody"),) * 2))
    never = plan(situation(*others, lost, failures=(Failure(2, "custody"),) * 3))

    assert isinstance(again, Plan)
    assert isinstance(never, GiveUp)


def test_a_holder_whose_agent_refused_gives_way_to_the_buddys_copy_at_once() -> None:
    lost = dead(2, torn(185), replica_group=GROUP)
    buddy = blocked(1, at(185, holds={"2": [186]}))
    refused = Failure(2, "replica", frozenset({2}), proven=True)
    ground = (blocked(0, at(185)), buddy, lost)
    first = the_move(situation(*ground))
    move = the_move(situation(*ground, failures=(refused,)))

    assert streams(first) == [("replica", "shared", 0), ("custody", "private", 2)]
    assert (move.source, move.finish) == ("replica", "none")
    assert streams(move) == [("replica", "shared", 0), ("buddy", "private", 1)]


def test_a_node_that_refused_the_whole_state_is_not_asked_for_its_private_part() -> None:
    lost = dead(2, at(185), replica_group=GROUP)
    buddy = blocked(1, at(185, holds={"2": [186]}))
    refused = Failure(2, "custody", frozenset({2}), proven=True)
    move = the_move(situation(blocked(0, at(185)), buddy, lost, failures=(refused,)))

    assert streams(move) == [("replica", "shared", 0), ("buddy", "private", 1)]


def test_what_one_holder_refused_three_times_does_not_count_against_another() -> None:
    lost = silent(2, replica_group=GROUP)
    buddy = blocked(1, at(185, holds={"2": [186]}))
    refused = Failure(2, "replica", frozenset({0}), proven=True)
    decision = the_move(situation(blocked(0, at(185)), buddy, lost, failures=(refused,) * 3))

    assert streams(decision) == [("replica", "shared", 1), ("buddy", "private", 1)]


def test_a_failure_that_only_the_target_saw_counts_whoever_served() -> None:
    lost = silent(2, replica_group=GROUP)
    buddy = blocked(1, at(185, holds={"2": [186]}))
    failed = Failure(2, "replica", frozenset({0, 1}))
    decision = plan(situation(blocked(0, at(185)), buddy, lost, failures=(failed,) * 3))

    assert isinstance(decision, GiveUp)


def test_two_ranks_are_not_moved_into_one_failure_domain_while_another_fits() -> None:
    spares = (
        standby(7, place=place(7, domain="row-a")),
        standby(8, place=place(8, domain="row-a")),
        standby(9, place=place(9, domain="row-b")),
    )
    decision = planned(
        situation(blocked(0, at(184)), dead(1, at(184)), dead(2, at(184)), spares=spares)
    )

    domains = {move.to_place.failure_domain for move in decision.moves}
    assert domains == {"row-a", "row-b"}


def test_two_ranks_share_a_failure_domain_only_when_no_other_fits_and_it_is_said() -> None:
    spares = tuple(standby(n, place=place(n, domain="row-a")) for n in (7, 8))
    decision = planned(
        situation(blocked(0, at(184)), dead(1, at(184)), dead(2, at(184)), spares=spares)
    )

    assert len(decision.moves) == 2
    assert "no other fits" in decision.moves[1].target_reason


def test_the_standby_set_up_as_the_rank_is_preferred() -> None:
    spares = (standby(7, provisional_rank=0), standby(8, provisional_rank=1))
    move = the_move(situation(blocked(0, at(184)), dead(1, at(184)), spares=spares))

    assert move.to_worker == "s8"


# --- Properties -------------------------------------------------------------------------------------

STEP = 50


@st.composite
def positions(draw: st.DrawFn) -> Position:
    """Any place where a rank can be while step STEP is being made."""
    shape = draw(st.sampled_from([at, prepared, torn, applied_not_fenced]))
    step = STEP if shape is not at else draw(st.sampled_from([STEP - 1, STEP]))
    gradients = draw(st.booleans())
    shadow = draw(st.sampled_from([-1, STEP - 1, STEP]))
    holds = {
        str(r): draw(st.lists(st.sampled_from([STEP, STEP + 1]), max_size=2)) for r in range(3)
    }
    return changed_position(shape(step), has_gradients=gradients, shadow=shadow, holds=holds)


def changed_position(position: Position, **changed: Any) -> Position:
    fields = {name: getattr(position, name) for name in Position.__struct_fields__}
    return Position(**{**fields, **changed})


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    members: list[Member] = []
    for rank in range(3):
        condition = draw(st.sampled_from(["blocked", "exited", "silent"]))
        position = draw(positions())
        if condition == "blocked" and position.applying > position.applied:
            position = at(STEP)
        custody = draw(st.sampled_from(["usable", "unavailable", "none"]))
        group = draw(st.sampled_from([frozenset({rank}), GROUP]))
        members.append(
            Member(
                rank=rank,
                worker_id=f"w{rank}",
                place=place(rank),
                condition=condition,
                position=None if condition == "silent" else position,
                custody=custody if condition == "exited" else "none",
                replica_group=group,
                fingerprint=draw(st.sampled_from([FINGERPRINT, "avx2", ""])),
            )
        )
    count = draw(st.integers(min_value=0, max_value=3))
    spares = tuple(
        standby(7 + n, fingerprint=draw(st.sampled_from([FINGERPRINT, "avx2"])))
        for n in range(count)
    )
    return Situation(members=tuple(members), standbys=spares)


@given(situations())
def test_every_plan_gives_each_rank_exactly_one_place(given_situation: Situation) -> None:
    decision = plan(given_situation)
    if not isinstance(decision, Plan):
        return
    moved = [move.rank for move in decision.moves]

    assert sorted([*decision.stay, *moved]) == [0, 1, 2]
    assert len({move.to_worker for move in decision.moves}) == len(moved)


@given(situations())
def test_every_target_computes_like_the_rank_it_takes(given_situation: Situation) -> None:
    decision = plan(given_situation)
    if not isinstance(decision, Plan):
        return
    numerics = {m.rank: m.fingerprint for m in given_situation.members}
    of_standby = {s.worker_id: s.fingerprint for s in given_situation.standbys}

    assert all(numerics[m.rank] == of_standby[m.to_worker] != "" for m in decision.moves)


@given(situations())
def test_no_plan_takes_bytes_from_where_nobody_answers(given_situation: Situation) -> None:
    decision = plan(given_situation)
    if not isinstance(decision, Plan):
        return
    silent_nodes = {m.place.node_id for m in given_situation.members if m.condition == "silent"}
    used = {stream.place.node_id for move in decision.moves for stream in move.streams}

    assert not used & silent_nodes


@given(situations())
def test_a_torn_arena_is_never_served_as_shared_state(given_situation: Situation) -> None:
    decision = plan(given_situation)
    if not isinstance(decision, Plan):
        return
    by_rank = {m.rank: m for m in given_situation.members}
    for move in decision.moves:
        position = by_rank[move.rank].position
        if move.source in ("custody", "live"):
            assert position is not None
            assert position.applying == position.applied
            assert position.applied in (decision.resume_at, decision.resume_at - 1)


@given(situations())
def test_a_smaller_pool_of_standbys_never_makes_a_plan_possible(given_situation: Situation) -> None:
    if isinstance(plan(given_situation), Wait) and given_situation.standbys:
        fewer = dataclasses.replace(given_situation, standbys=given_situation.standbys[1:])

        assert not isinstance(plan(fewer), Plan)


@given(situations())
def test_the_same_situation_is_decided_the_same_way(given_situation: Situation) -> None:
    assert plan(given_situation) == plan(given_situation)


# --- What the walk over the whole protocol (test_protocol.py) has found ------------------------------


def test_a_generation_that_began_at_a_step_does_not_go_back_behind_it() -> None:
    """Its target had ended unfilled and the others are lost, but the job had committed."""
    kept = Kept(worker_id="old", place=place(5), position=at(185), resume_at=185, live=False)
    target = dead(0, Position(), kept=(kept,))
    decision = plan(situation(target, silent(1), resumed_at=185))
    assert isinstance(decision, GiveUp)
    assert (decision.code, decision.resume_at) == ("no_source", 185)


def test_the_shadow_that_was_kept_is_taken_when_its_first_target_has_died() -> None:
    position = torn(185, shadow=184, has_gradients=True)
    kept = Kept(worker_id="old", place=place(5), position=position, resume_at=185, live=False)
    target = dead(2, Position(), kept=(kept,), replica_group=ALONE)
    move = the_move(situation(blocked(0, at(185)), blocked(1, at(185)), target, resumed_at=185))
    assert (move.source, move.finish) == ("shadow", "apply")
    assert streams(move) == [("shadow", "all", 5)]


# --- Replicas that disagree ---


def holder(rank: int, digest: str, **changed: Any) -> Member:
    kept = {str((rank - 1) % 3): [184, 185]}
    return blocked(rank, at(185, replica_digest=digest, holds=kept), replica_group=GROUP, **changed)


def test_a_rank_whose_bits_differ_from_the_others_is_moved_by_a_replica_not_from_its_own_memory() -> (
    None
):
    members = (holder(0, "good"), holder(1, "bad"), holder(2, "good"))
    move = the_move(situation(*members, leaving=frozenset({1})))
    assert (move.rank, move.source) == (1, "replica")
    assert streams(move) == [("replica", "shared", 0), ("buddy", "private", 2)]
    assert "live: its bits at step 185 are not those that ranks 0, 2 agree on" in move.passed_over


def test_a_rank_whose_bits_differ_is_moved_although_another_was_to_leave() -> None:
    members = (holder(0, "good"), holder(1, "bad"), holder(2, "good"))
    spares = (standby(8), standby(9))
    decision = planned(situation(*members, spares=spares, leaving=frozenset({0})))
    assert {move.rank: move.source for move in decision.moves} == {0: "live", 1: "replica"}


def test_where_the_replicas_agree_the_paused_rank_is_its_own_source() -> None:
    members = (holder(0, "good"), holder(1, "good"), holder(2, "good"))
    move = the_move(situation(*members, leaving=frozenset({1})))
    assert move.source == "live"


def test_two_replicas_that_disagree_are_both_refused() -> None:
    pair = frozenset({0, 1})
    members = (
        blocked(0, at(185, replica_digest="one"), replica_group=pair),
        blocked(1, at(185, replica_digest="other"), replica_group=pair),
    )
    decision = plan(situation(*members, leaving=frozenset({1})))
    assert isinstance(decision, GiveUp)
    assert "no majority agrees" in decision.reason
