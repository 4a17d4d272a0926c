"""How many node losses the spares can take: always the worst case."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from frontend.queries.spares import Cover, SpareNode, covers


def losses(spares: list[int], used: list[int]) -> int:
    found = covers(
        [SpareNode("p", slots, False) for slots in spares], [("p", slots) for slots in used]
    )
    return sum(cover.losses for cover in found)


def test_one_spare_of_eight_takes_one_node_of_eight() -> None:
    assert covers([SpareNode("h100", 8, True)], [("h100", 8), ("h100", 8)]) == [
        Cover("h100", 1, 1, 1)
    ]


def test_a_spare_of_another_pool_helps_nobody() -> None:
    found = {cover.pool: cover.losses for cover in covers([SpareNode("a", 8, False)], [("b", 8)])}
    assert found == {"a": 0, "b": 0}


def test_a_node_too_full_for_the_spares_covers_nothing() -> None:
    assert losses([4], [8, 2, 2]) == 0


@given(st.lists(st.integers(1, 6), max_size=3), st.lists(st.integers(1, 6), max_size=5))
def test_any_so_many_nodes_fit_and_some_one_more_does_not(
    spares: list[int], used: list[int]
) -> None:
    k = losses(spares, used)
    assert all(sum(gone) <= sum(spares) for gone in itertools.combinations(used, k))
    if k < len(used):
        assert any(sum(gone) > sum(spares) for gone in itertools.combinations(used, k + 1))
