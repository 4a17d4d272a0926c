from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jobs.states import Verdict
from jobs.verification import Claim, Commit, Transfer, prove


def commit(rank: int, **changed: Any) -> Commit:
    fields: dict[str, Any] = {
        "rank": rank,
        "step": 185,
        "previous_step": 184,
        "heads": {184: f"t{rank}"},
        "batch_hash": f"b{rank}",
        "redone_batch_hash": f"b{rank}",
        "replica_digest": "same",
        "pause_ms": 100.0 + rank,
    }
    return Commit(**{**fields, **changed})


def claim(**changed: Any) -> Claim:
    fields: dict[str, Any] = {
        "world_size": 3,
        "committed": 184,
        "resume_at": 184,
        "streams": {2: 1},
        "transfers": [Transfer(rank=2, holder="custody", source_digest="d", target_digest="d")],
        "commits": {rank: commit(rank) for rank in range(3)},
        "replica_groups": [frozenset({0, 1, 2})],
        "trails": {rank: (184, f"t{rank}") for rank in range(3)},
    }
    return Claim(**{**fields, **changed})


def with_commit(rank: int, **changed: Any) -> Claim:
    base = claim()
    return dataclasses.replace(base, commits={**base.commits, rank: commit(rank, **changed)})


def test_everything_in_order_is_covered_with_the_slowest_pause() -> None:
    proof = prove(claim())

    assert proof.verdict == Verdict.COVERED
    assert (proof.transfer.holds, proof.continuity.holds, proof.replicas.holds) == (
        True,
        True,
        True,
    )
    assert (proof.lost_steps, proof.pause_ms) == (0, 102.0)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        pytest.param(
            claim(transfers=[Transfer(rank=2, holder="c", source_digest="d", target_digest="e")]),
            "left with d and arrived with e",
            id="a flipped byte",
        ),
        pytest.param(
            claim(transfers=[Transfer(rank=2, holder="c", source_digest="", target_digest="")]),
            "left with none",
            id="no digest",
        ),
        pytest.param(claim(transfers=[]), "0 of 1 streams reported", id="no transfer reported"),
        pytest.param(
            with_commit(1, step=186), "committed step 186 after 184", id="a step left out"
        ),
        pytest.param(with_commit(1, previous_step=183), "after 183", id="another step before"),
        pytest.param(with_commit(0, batch_hash="x"), "drew another batch", id="another batch"),
        pytest.param(
            with_commit(0, heads={184: "x"}),
            "not the one known before at step 184",
            id="another trail",
        ),
        pytest.param(
            with_commit(2, replica_digest="other"), "different digests", id="replicas differ"
        ),
        pytest.param(
            with_commit(2, replica_digest=""), "not every replica", id="a replica is silent"
        ),
        pytest.param(
            claim(committed=186), "2 committed steps were computed again", id="rolled back"
        ),
        pytest.param(
            claim(commits={0: commit(0), 1: commit(1)}, replica_groups=[]),
            "rank 2 has not committed",
            id="a rank is missing",
        ),
    ],
)
def test_anything_out_of_order_is_missed_and_the_reason_is_given(broken: Claim, words: str) -> None:
    proof = prove(broken)

    assert proof.verdict == Verdict.MISSED
    assert words in proof.reason


def test_one_holder_that_reports_twice_is_one_of_two_streams() -> None:
    twice = [Transfer(rank=2, holder="replica", source_digest="d", target_digest="d")] * 2
    proof = prove(claim(streams={2: 2}, transfers=twice))

    assert proof.transfer.holds is False
    assert "rank 2: 1 of 2 streams reported" in proof.reason


def test_a_stream_that_was_fetched_again_is_no_stream_too_many() -> None:
    again = [
        Transfer(rank=2, holder=holder, source_digest="d", target_digest="d")
        for holder in ("replica", "buddy", "buddy")
    ]

    assert prove(claim(streams={2: 2}, transfers=again)).transfer.holds is True


def test_without_replicas_the_third_level_does_not_apply() -> None:
    proof = prove(claim(replica_groups=[frozenset({0}), frozenset({1})]))

    assert proof.replicas.holds is None
    assert proof.verdict == Verdict.COVERED


def test_a_group_that_only_broke_needs_no_transfer() -> None:
    proof = prove(claim(streams={}, transfers=[]))

    assert proof.transfer.holds is True
    assert proof.verdict == Verdict.COVERED


def test_a_batch_that_was_never_drawn_before_proves_nothing_and_breaks_nothing() -> None:
    assert prove(with_commit(1, redone_batch_hash="")).verdict == Verdict.COVERED


def test_a_newcomer_has_no_pause() -> None:
    assert prove(with_commit(2, pause_ms=None)).pause_ms == 101.0


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param(claim(trails={0: (184, "t0"), 1: (184, "t1")}), id="nobody knew its head"),
        pytest.param(with_commit(2, heads={}), id="it names none"),
    ],
)
def test_the_trail_of_a_moved_rank_that_nobody_knew_is_open_and_never_verified(
    unknown: Claim,
) -> None:
    proof = prove(unknown)

    assert proof.continuity.holds is None
    assert "the trail of rank 2 was not compared" in proof.continuity.words
    assert "the trail of rank 2 was not compared" in proof.reason
    assert proof.verdict == Verdict.COVERED


def test_a_rank_that_stayed_has_its_own_trail_and_is_compared_where_it_can_be() -> None:
    proof = prove(claim(trails={2: (184, "t2")}))

    assert proof.continuity.holds is True
    assert "1 of them with a trail head known before" in proof.continuity.words


def test_an_open_trail_does_not_cover_up_what_is_broken() -> None:
    broken = dataclasses.replace(with_commit(1, step=186), trails={})

    assert prove(broken).continuity.holds is False
    assert prove(broken).verdict == Verdict.MISSED


def test_an_older_head_that_the_trail_passed_through_is_a_comparison_too() -> None:
    marked = with_commit(2, heads={176: "m176", 184: "t2"})
    proof = prove(dataclasses.replace(marked, trails={**marked.trails, 2: (176, "m176")}))

    assert (proof.verdict, proof.continuity.holds) == (Verdict.COVERED, True)
    assert "3 of them (rank 2 at step 176) with a trail head known before" in proof.continuity.words


def test_a_trail_that_passed_through_another_mark_is_missed() -> None:
    marked = with_commit(2, heads={176: "other", 184: "t2"})
    proof = prove(dataclasses.replace(marked, trails={**marked.trails, 2: (176, "m176")}))

    assert (proof.verdict, proof.continuity.holds) == (Verdict.MISSED, False)
    assert "rank 2's trail is not the one known before at step 176" in proof.reason


def test_a_mark_older_than_the_trail_remembers_is_no_comparison() -> None:
    marked = claim(trails={**claim().trails, 2: (16, "m16")})

    assert prove(marked).continuity.holds is None
