"""How much of a pool and of a rack one rule may take at once. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .policies import Breakers
from .states import NodeState


@dataclass(frozen=True)
class Taken:
    """What a breaker sees of a node. ``by_rule`` is the rule that holds it suspect, else empty."""

    node_id: int
    pool: str
    rack: str
    state: str
    by_rule: str


@dataclass(frozen=True)
class Refusal:
    """Why a rule may not take a node. ``trips`` says that a share was used up: a breaker opens."""

    scope: str
    name: str
    reason: str
    trips: bool


def allowed(share: float, num_nodes: int) -> int:
    """Nodes one rule may hold at once in a scope of that size: never less than one."""
    return max(1, math.floor(share * num_nodes))


def taking_refused(
    node_id: int, rule: str, fleet: Iterable[Taken], breakers: Breakers
) -> Refusal | None:
    """Whether ``rule`` may take this node of ``fleet`` (the nodes of one cluster); None means yes."""
    present = [node for node in fleet if node.state != NodeState.RETIRED]
    wanted = next(node for node in present if node.node_id == node_id)
    scopes = [
        ("pool", wanted.pool, breakers.pool_share, [n for n in present if n.pool == wanted.pool]),
        ("rack", wanted.rack, breakers.rack_share, [n for n in present if n.rack == wanted.rack]),
    ]
    for scope, name, share, members in scopes:
        held = [n for n in members if n.by_rule == rule and n.node_id != node_id]
        limit = allowed(share, len(members))
        if len(held) >= limit:
            reason = (
                f"{rule} already holds {len(held)} of {len(members)} nodes of {scope} {name}, "
                f"and may hold {limit} at once"
            )
            return Refusal(scope=scope, name=name, reason=reason, trips=True)
    ready = [n for n in scopes[0][3] if n.state == NodeState.READY and n.node_id != node_id]
    if len(ready) < breakers.ready_floor:
        reason = (
            f"pool {wanted.pool} would be left with {len(ready)} ready nodes, "
            f"and must keep {breakers.ready_floor}"
        )
        return Refusal(scope="pool", name=wanted.pool, reason=reason, trips=False)
    return None
