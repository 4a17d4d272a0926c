from __future__ import annotations

from nodes.breakers import Taken, allowed, taking_refused
from nodes.policies import Breakers
from nodes.states import NodeState

RULE = "sustained_heat"
QUARTER = Breakers(pool_share=0.25, rack_share=0.5, ready_floor=1)


def fleet(num: int, held: set[int] = frozenset(), rack_of: int = 100) -> list[Taken]:  # type: ignore[assignment]
    return [
        Taken(
            node_id=n,
            pool="train",
            rack=f"r{n // rack_of}" if rack_of else "r",
            state=NodeState.SUSPECT if n in held else NodeState.READY,
            by_rule=RULE if n in held else "",
        )
        for n in range(num)
    ]


def test_a_share_of_a_small_pool_is_one_node() -> None:
    assert [allowed(0.25, n) for n in (1, 3, 4, 7, 8)] == [1, 1, 1, 1, 2]


def test_the_first_node_of_a_pool_may_be_taken() -> None:
    assert taking_refused(0, RULE, fleet(4), QUARTER) is None


def test_the_second_of_four_trips_the_breaker_of_the_pool() -> None:
    refusal = taking_refused(1, RULE, fleet(4, held={0}), QUARTER)
    assert refusal is not None
    assert (refusal.scope, refusal.name, refusal.trips) == ("pool", "train", True)
    assert refusal.reason == (
        "sustained_heat already holds 1 of 4 nodes of pool train, and may hold 1 at once"
    )


def test_a_rack_has_a_breaker_of_its_own() -> None:
    refusal = taking_refused(1, RULE, fleet(16, held={0}, rack_of=2), QUARTER)
    assert refusal is not None
    assert (refusal.scope, refusal.name) == ("rack", "r0")


def test_what_another_rule_holds_does_not_count() -> None:
    nodes = [*fleet(3), Taken(node_id=3, pool="train", rack="r0", state="suspect", by_rule="other")]
    assert taking_refused(0, RULE, nodes, QUARTER) is None


def test_another_pool_does_not_count() -> None:
    other = [Taken(node_id=9, pool="infer", rack="x", state="suspect", by_rule=RULE)]
    assert taking_refused(0, RULE, [*fleet(4), *other], QUARTER) is None


def test_a_pool_keeps_its_floor_of_ready_nodes_without_tripping() -> None:
    refusal = taking_refused(0, RULE, fleet(1), QUARTER)
    assert refusal is not None
    assert (refusal.trips, refusal.reason) == (
        False,
        "pool train would be left with 0 ready nodes, and must keep 1",
    )
