from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.placement import Seat, Slot, buddies, ranks_placed, standbys_placed


def slots(*nodes: tuple[int, int, str]) -> list[Slot]:
    """(node id, number of GPUs, failure domain) for each node."""
    return [
        Slot(node, gpu, f"node-{node}", domain, "H200")
        for node, count, domain in nodes
        for gpu in range(count)
    ]


def test_each_rank_has_a_slot_of_its_own_and_the_spare_node_is_left_empty() -> None:
    free = slots((1, 1, "a"), (2, 1, "b"), (3, 1, "c"), (4, 1, "d"))
    placed = ranks_placed(3, 1, free)

    assert placed is not None
    assert len(set(placed)) == 3
    assert {slot.node_id for slot in placed} == {1, 2, 3}


def test_ranks_are_spread_over_failure_domains_and_neighbours_stay_together() -> None:
    free = slots((1, 4, "a"), (2, 4, "a"), (3, 4, "b"))
    placed = ranks_placed(8, 0, free)

    assert placed is not None
    assert Counter(slot.failure_domain for slot in placed) == {"a": 4, "b": 4}
    assert [slot.node_id for slot in placed] == [1, 1, 2, 2, 3, 3, 3, 3]


def test_a_world_that_does_not_fit_has_no_placement() -> None:
    assert ranks_placed(3, 0, slots((1, 2, "a"))) is None


def test_nothing_is_reserved_for_standbys_when_the_ranks_need_it() -> None:
    placed = ranks_placed(4, 1, slots((1, 2, "a"), (2, 2, "b")))

    assert placed is not None
    assert len(placed) == 4


def test_a_standby_goes_off_the_ranks_nodes_and_domains() -> None:
    free = slots((1, 1, "a"), (3, 1, "a"), (4, 1, "d"))
    placed = standbys_placed(1, free, [Seat(1, "a"), Seat(2, "b")])

    assert [slot.node_id for slot in placed] == [4]


def test_standbys_are_spread_over_failure_domains_themselves() -> None:
    free = slots((4, 2, "d"), (5, 1, "e"))
    placed = standbys_placed(2, free, [Seat(1, "a")])

    assert {slot.failure_domain for slot in placed} == {"d", "e"}


def test_a_standby_on_another_gpu_model_is_of_no_use() -> None:
    free = [Slot(4, 0, "node-4", "d", "A100")]

    assert standbys_placed(1, free, [Seat(1, "a")], frozenset({"H200"})) == []


def test_a_buddy_is_in_another_failure_domain_as_far_as_that_goes_round() -> None:
    seats = {0: Seat(1, "a"), 1: Seat(2, "a"), 2: Seat(3, "b")}
    found = buddies(seats)

    assert found == {0: 1, 1: 2, 2: 0}
    assert sum(seats[r].failure_domain != seats[b].failure_domain for r, b in found.items()) == 2


def test_no_rank_keeps_two_copies_and_one_may_have_no_buddy() -> None:
    assert buddies({0: Seat(1, "a"), 1: Seat(1, "a"), 2: Seat(2, "b")}) == {0: 2, 2: 1}


def test_ranks_on_one_node_have_no_buddy() -> None:
    assert buddies({0: Seat(1, "a"), 1: Seat(1, "a")}) == {}


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_a_ring_of_single_nodes_keeps_one_copy_each(world_size: int) -> None:
    found = buddies({rank: Seat(rank, f"d{rank}") for rank in range(world_size)})

    assert Counter(found.values()) == dict.fromkeys(range(world_size), 1)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[int, Seat], dict[int, Seat]]:
    """Where up to sixteen ranks sit, and where after one of them has moved."""
    domain_of = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
    nodes = st.integers(0, len(domain_of) - 1)
    before = {
        rank: Seat(node, domain_of[node])
        for rank, node in enumerate(draw(st.lists(nodes, min_size=1, max_size=16)))
    }
    rank, node = draw(st.sampled_from(sorted(before))), draw(nodes)
    return before, {**before, rank: Seat(node, domain_of[node])}


def matched(edges: dict[int, set[int]]) -> int:
    """Size of a maximum matching, by augmenting paths."""
    owner: dict[int, int] = {}

    def augment(rank: int, seen: set[int]) -> bool:
        for keeper in edges[rank] - seen:
            seen.add(keeper)
            if keeper not in owner or augment(owner[keeper], seen):
                owner[keeper] = rank
                return True
        return False

    return sum(augment(rank, set()) for rank in edges)


def edges_of(seats: dict[int, Seat], field: str) -> dict[int, set[int]]:
    return {
        rank: {o for o, other in seats.items() if getattr(other, field) != getattr(seat, field)}
        for rank, seat in seats.items()
    }


@settings(deadline=None)  # the first example imports torch
@given(layouts())
def test_every_buddy_map_is_one_that_the_engine_takes(
    layout: tuple[dict[int, Seat], dict[int, Seat]],
) -> None:
    copies = pytest.importorskip("agent.training.buddy").Copies
    for seats in layout:
        found = buddies(seats)
        words = {str(rank): str(buddy) for rank, buddy in found.items()}
        read = {rank: copies.read(words, rank) for rank in seats}

        assert {rank: each.to for rank, each in read.items() if each.to is not None} == found
        assert found == buddies(dict(reversed(seats.items())))
        assert all(seats[rank].node_id != seats[buddy].node_id for rank, buddy in found.items())


@given(layouts())
def test_as_many_ranks_as_can_be_have_a_buddy_and_in_another_domain(
    layout: tuple[dict[int, Seat], dict[int, Seat]],
) -> None:
    for seats in layout:
        found = buddies(seats)
        apart = sum(
            seats[rank].failure_domain != seats[buddy].failure_domain
            for rank, buddy in found.items()
        )

        assert len(found) == matched(edges_of(seats, "node_id"))
        assert apart == matched(edges_of(seats, "failure_domain"))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from("abcd")), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_whatever_fits_is_placed_on_distinct_slots(
    nodes: list[tuple[int, str]], world_size: int, standbys: int
) -> None:
    free = slots(*((index, count, domain) for index, (count, domain) in enumerate(nodes)))
    placed = ranks_placed(world_size, standbys, free)

    assert (placed is not None) == (world_size <= len(free))
    if placed is not None:
        assert len(set(placed)) == world_size
        assert set(placed) <= set(free)
