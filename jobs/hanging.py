"""Who hangs, decided from where all ranks of a generation stand. Pure.

A rank that waits inside a collective waits for the members of that group that have not issued it yet. One
of those that is itself inside no collective, or whose process does not run at all, is what everybody waits
for: the suspect. Where all are inside the same collective nobody is: it is the network, and killing a rank
would help nobody.

| row | what is seen | judgement |
|---|---|---|
| moving | one rank at least has moved within its usual time | ``Nobody`` |
| no_wait | no rank is inside a collective | ``Nobody`` |
| patience | the one that is waited for is in a phase that may take longer | ``Patience`` |
| suspect | it is over the limit of its phase | ``Suspect``: the lowest of them |
| network | all inside the same collective, or in a circle, for ``network_s`` | ``Network`` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.protocol import Limits, Standing


@dataclass(frozen=True)
class Nobody:
    """Nothing hangs as far as this shows."""


@dataclass(frozen=True)
class Patience:
    """Others wait for ``rank``, which is doing what may take ``limit_s``."""

    rank: int
    limit_s: float
    words: str


@dataclass(frozen=True)
class Suspect:
    """``rank`` holds all others up and is not inside a collective. ``still_s``: how long it has not moved."""

    rank: int
    still_s: float
    words: str


@dataclass(frozen=True)
class Network:
    """Every rank is there and waits. A new generation; nobody is ended."""

    words: str


Judgement = Nobody | Patience | Suspect | Network


def judge(standings: Mapping[int, Standing | None], limits: Limits) -> Judgement:
    """Who hangs. ``standings``: of every rank of the generation; None for one that is not standing still."""
    still = {rank: standing for rank, standing in standings.items() if standing is not None}
    if len(still) < len(standings) or not any(map(_inside, still.values())):
        return Nobody()
    awaited = _awaited(still)
    suspects = [rank for rank in awaited if not _really_inside(still[rank], limits)]
    # Nobody is known to be waited for, but one of those inside does not run: it is stopped there.
    suspects = suspects or [rank for rank in still if _is_frozen(still[rank], limits)]
    if suspects:
        return _weighed(still, min(suspects, key=lambda rank: _order(still, rank)), limits)
    return _of_network(still, awaited, limits)


def _inside(standing: Standing) -> bool:
    return any(group.pending != 0 for group in standing.groups)


def _is_frozen(standing: Standing, limits: Limits) -> bool:
    """Its process does not run: stopped, or native code holds its GIL."""
    return standing.beat_s >= limits.stall_s


def _really_inside(standing: Standing, limits: Limits) -> bool:
    """A frozen process shows what it was inside of when it froze, finished since or not."""
    return _inside(standing) and not _is_frozen(standing, limits)


def _awaited(still: Mapping[int, Standing]) -> frozenset[int]:
    """Ranks that have not issued a collective that another member of its group is inside of."""
    issued = {
        rank: {group.key: group.issued for group in standing.groups}
        for rank, standing in still.items()
    }
    return frozenset(
        rank
        for standing in still.values()
        for group in standing.groups
        for rank, counts in issued.items()
        if counts.get(group.key, group.pending) < group.pending
    )


def _order(still: Mapping[int, Standing], rank: int) -> tuple[int, int, int]:
    """The lowest is the one the others wait for first: by step, then by collectives issued."""
    standing = still[rank]
    return standing.step, sum(group.issued for group in standing.groups), rank


def _weighed(still: Mapping[int, Standing], rank: int, limits: Limits) -> Judgement:
    standing = still[rank]
    limit_s = limits.of_phase(standing.phase, standing.step, frozen=_is_frozen(standing, limits))
    others = ", ".join(str(r) for r in sorted(still) if r != rank and _inside(still[r]))
    frozen = ", its process does not run" if _is_frozen(standing, limits) else ""
    words = (
        f"rank {rank} has not moved for {standing.still_s:.1f} s in {standing.phase} after step "
        f"{standing.step}{frozen}; waiting in a collective: {others or 'nobody else'}"
    )
    if limit_s is None:
        return Nobody()
    if standing.still_s < limit_s:
        return Patience(rank, limit_s, f"{words}; {standing.phase} may take {limit_s:g} s")
    return Suspect(rank, standing.still_s, words)


def _of_network(
    still: Mapping[int, Standing], awaited: frozenset[int], limits: Limits
) -> Judgement:
    waited_s = min(standing.still_s for standing in still.values())
    known = all(limits.of_phase(s.phase, s.step) is not None for s in still.values())
    if waited_s < limits.network_s or not known or not all(map(_inside, still.values())):
        return Nobody()
    if awaited:
        ranks = ", ".join(map(str, sorted(awaited)))
        return Network(f"the ranks wait for each other in different collectives: ranks {ranks}")
    return Network(f"every rank has been inside the same collective for {waited_s:.1f} s")
