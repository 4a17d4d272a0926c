"""Where ranks and standbys go, and which rank keeps a copy for which. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Slot:
    """A free GPU of a node that may take work."""

    node_id: int
    gpu_index: int
    node_name: str
    failure_domain: str
    model: str = ""


@dataclass(frozen=True)
class Seat:
    """Where a rank sits."""

    node_id: int
    failure_domain: str


def ranks_placed(world_size: int, standbys: int, free: Iterable[Slot]) -> list[Slot] | None:
    """One slot a rank, in rank order, or None when they do not fit.

    One GPU model where one suffices; as many failure domains and nodes as there are; neighbouring
    ranks on one node. A node is left empty for the standbys where the others are enough.
    """
    slots = _one_model(sorted(free), world_size)
    if len(slots) < world_size:
        return None
    return _spread(world_size, _without_reserve(slots, world_size, standbys))


def standbys_placed(
    count: int, free: Iterable[Slot], ranks: Iterable[Seat], models: frozenset[str] = frozenset()
) -> list[Slot]:
    """Up to ``count`` slots: off the ranks' nodes and failure domains where that can be.

    ``models``: the ranks' GPU models; another model cannot continue them bit by bit.
    """
    seats = list(ranks)
    nodes, domains = {seat.node_id for seat in seats}, {seat.failure_domain for seat in seats}
    left = [slot for slot in sorted(free) if not models or slot.model in models]
    chosen: list[Slot] = []
    while left and len(chosen) < count:
        taken = {slot.failure_domain for slot in chosen}
        best = min(
            left,
            key=lambda slot: (
                slot.node_id in nodes,
                slot.failure_domain in taken,
                slot.failure_domain in domains,
                slot,
            ),
        )
        chosen.append(best)
        left.remove(best)
    return chosen


def buddies(seats: Mapping[int, Seat]) -> dict[int, int]:
    """rank -> rank whose agent keeps a copy of its private state: a partial permutation.

    Nobody keeps two copies, for an agent has one slot; never on the same node. As many ranks as can be
    have a buddy, and as many of those as can be in another failure domain; the rest have none.

    One turn of the ranks in block order gives both maxima: turned by at least the largest node's size,
    and by as much left over, no rank meets its own node; turned by the largest domain's size, or by
    what is outside it when that is less, every rank that can meets another domain. Only a node with
    more than half of the ranks meets itself, and its ranks left over can have no buddy at all.
    """
    in_domain = Counter(seat.failure_domain for seat in seats.values())
    on_node = Counter(seat.node_id for seat in seats.values())

    def block(rank: int) -> tuple[int, str, int, int, int]:
        domain, node = seats[rank].failure_domain, seats[rank].node_id
        return (-in_domain[domain], domain, -on_node[node], node, rank)

    order = sorted(seats, key=block)
    largest = max(in_domain.values(), default=0)
    turn = max(max(on_node.values(), default=0), min(largest, len(order) - largest))
    turned = order[turn:] + order[:turn]
    return {
        rank: buddy
        for rank, buddy in sorted(zip(order, turned, strict=True))
        if seats[rank].node_id != seats[buddy].node_id
    }


def _one_model(slots: Sequence[Slot], world_size: int) -> list[Slot]:
    """The slots of the most frequent GPU model when they are enough; else all of them."""
    by_model: dict[str, list[Slot]] = defaultdict(list)
    for slot in slots:
        by_model[slot.model].append(slot)
    largest = max(by_model.values(), key=len, default=[])
    return largest if len(largest) >= world_size else list(slots)


def _by_node(slots: Iterable[Slot]) -> dict[int, list[Slot]]:
    nodes: dict[int, list[Slot]] = defaultdict(list)
    for slot in slots:
        nodes[slot.node_id].append(slot)
    return nodes


def _without_reserve(slots: list[Slot], world_size: int, standbys: int) -> list[Slot]:
    """Leave whole nodes for the standbys, smallest first, while the others have room."""
    nodes = _by_node(slots)
    left, wanted = len(slots), standbys
    for node_id in sorted(nodes, key=lambda node: (len(nodes[node]), -node)):
        size = len(nodes[node_id])
        if wanted <= 0 or left - size < world_size:
            break
        del nodes[node_id]
        left, wanted = left - size, wanted - size
    return [slot for own in nodes.values() for slot in own]


def _spread(world_size: int, slots: list[Slot]) -> list[Slot]:
    """Ranks go round by failure domain, then node; neighbours end up on one node."""
    nodes = _by_node(slots)
    domain_of = {node: own[0].failure_domain for node, own in nodes.items()}
    count: dict[int, int] = defaultdict(int)
    in_domain: dict[str, int] = defaultdict(int)
    for _ in range(world_size):
        open_nodes = [node for node, own in nodes.items() if count[node] < len(own)]
        node = min(open_nodes, key=lambda n: (in_domain[domain_of[n]], count[n], nodes[n][0]))
        count[node] += 1
        in_domain[domain_of[node]] += 1
    return [slot for node in sorted(nodes) for slot in sorted(nodes[node])[: count[node]]]
