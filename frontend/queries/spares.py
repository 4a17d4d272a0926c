"""How many simultaneous node losses the spares can take: a pure count over what stands ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SpareNode:
    """A node that may take ranks now. ``slots`` are its GPUs."""

    pool: str
    slots: int
    warm: bool


@dataclass(frozen=True)
class Cover:
    """``losses``: any that many nodes in use may die at once and every rank finds a slot."""

    pool: str
    ready: int
    warm: int
    losses: int


def covers(spares: Iterable[SpareNode], used: Iterable[tuple[str, int]]) -> list[Cover]:
    """One Cover a pool, by name. ``used`` are (pool, slots taken) of each node in use.

    The worst case counts: the fullest nodes are taken to die first, and a node's ranks may be
    spread over several spares.
    """
    by_pool: dict[str, list[SpareNode]] = {}
    for spare in spares:
        by_pool.setdefault(spare.pool, []).append(spare)
    loads: dict[str, Counter[int]] = {}
    for pool, slots in used:
        loads.setdefault(pool, Counter())[slots] += 1
    answer: list[Cover] = []
    for pool in sorted({*by_pool, *loads}):
        ready = by_pool.get(pool, [])
        left = sum(spare.slots for spare in ready)
        losses = 0
        for slots, times in sorted(loads.get(pool, Counter()).items(), reverse=True):
            if slots <= 0:
                continue
            fits = min(times, left // slots)
            losses += fits
            left -= fits * slots
            if fits < times:
                break
        answer.append(Cover(pool, len(ready), sum(spare.warm for spare in ready), losses))
    return answer
