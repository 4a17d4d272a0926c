"""Where a recovery that lacks places may find them, at whose cost, and why. Pure.

Order of choice (design.md §6): a warm standby of the job itself, the node of a standby of a lower job, an
idle node, the nodes of the lowest job that may be parked, and else nobody, in words. Never a job of the same
or a higher priority, never a node under suspicion: such nodes are not among the slots given here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .placement import Slot

Kind = Literal["standby", "spare", "idle", "park", "none"]


@dataclass(frozen=True, kw_only=True)
class Need:
    """A job that lacks ``num_slots`` places for ranks it has lost. ``models``: GPU models that fit."""

    name: str
    priority: int
    num_slots: int
    models: frozenset[str]
    warming: int = 0
    """standbys of its own that are on their way"""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Another job of the pool. ``busy``: why it cannot be parked now, in words."""

    job_id: int
    name: str
    priority: int
    preemptible: bool
    rank_slots: tuple[Slot, ...] = ()
    standby_slots: tuple[Slot, ...] = ()
    busy: str = ""
    parked_today: int = 0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """``job_ids``: the jobs that give way: by their standbys (spare) or as a whole (park).

    ``reasons`` name other jobs and are for operators; ``summary`` says the same of nobody in particular.
    """

    kind: Kind
    job_ids: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    summary: str = ""


def places_for(
    need: Need, idle: Sequence[Slot], candidates: Iterable[Candidate], *, parked_max: int
) -> Choice:
    """The first of the five that is enough, with words for what was passed over."""
    if need.num_slots <= need.warming:
        words = "standbys of its own are on their way"
        return Choice(kind="standby", reasons=(words,), summary=words)
    lacking = need.num_slots - need.warming
    reasons = [f"{need.name} has no warm standby for {_places(lacking)}"]
    # The lowest first, of equals the youngest: the oldest has waited longest for its end.
    others = sorted(candidates, key=lambda c: (c.priority, -c.job_id))
    lower = [other for other in others if other.priority < need.priority]
    spare = _enough([(c, _fitting(c.standby_slots, need)) for c in lower], lacking)
    if spare:
        names = ", ".join(c.name for c in spare)
        reasons.append(f"the standby of {names}, of lower priority, gives its node up")
        summary = "the standby of a lower job gives its node up"
        return Choice(kind="spare", job_ids=_ids(spare), reasons=tuple(reasons), summary=summary)
    reasons.append("no standby of a lower job sits on a node that fits")
    free = len(_fitting(idle, need))
    if free >= lacking:
        summary = f"{_places(free)} on idle nodes"
        return Choice(kind="idle", reasons=(*reasons, summary), summary=summary)
    reasons.append(f"idle nodes have {free} of the {_places(lacking)}")
    return _parked(need, lacking - free, others, reasons, parked_max)


def _parked(
    need: Need, lacking: int, others: list[Candidate], reasons: list[str], parked_max: int
) -> Choice:
    may: list[tuple[Candidate, Sequence[Slot]]] = []
    refused: Counter[str] = Counter()
    for other in others:
        slots = _fitting(other.rank_slots, need)
        refusal = _refused(other, need, slots, parked_max)
        if refusal is None:
            may.append((other, slots))
            continue
        refused[refusal.kind] += 1
        reasons.append(f"{other.name}: {refusal.words}")
    chosen = _enough(may, lacking)
    if not chosen:
        given = sum(len(slots) for _, slots in may)
        if given:
            reasons.append(f"parking every job that may be parked would give only {given}")
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(refused.items()))
        last = "no job can be parked for it"
        summary = f"{last} ({counted})" if counted else last
        return Choice(kind="none", reasons=(*reasons, last), summary=summary)
    for one in chosen:
        frees = _places(len(_fitting(one.rank_slots, need)))
        reasons.append(f"{one.name}: priority {one.priority}, may be parked, frees {frees}")
    summary = "a lower job is being parked to make room"
    return Choice(kind="park", job_ids=_ids(chosen), reasons=tuple(reasons), summary=summary)


@dataclass(frozen=True)
class _Refusal:
    kind: str
    words: str


def _refused(
    other: Candidate, need: Need, slots: Sequence[Slot], parked_max: int
) -> _Refusal | None:
    """Why a job may not be parked for this need."""
    if other.priority >= need.priority:
        words = f"its priority {other.priority} is not below {need.priority}"
        return _Refusal("not of lower priority", words)
    if not other.preemptible:
        return _Refusal("not preemptible", "it is not preemptible")
    if other.busy:
        return _Refusal("not parkable now", other.busy)
    if other.parked_today >= parked_max:
        words = f"it was parked {other.parked_today} times within a day, {parked_max} are allowed"
        return _Refusal("parked too often today", words)
    return None if slots else _Refusal("on nodes that do not fit", "none of its nodes fits")


def _fitting(slots: Iterable[Slot], need: Need) -> list[Slot]:
    return [slot for slot in slots if not need.models or slot.model in need.models]


def _enough(offers: Iterable[tuple[Candidate, Sequence[Slot]]], wanted: int) -> list[Candidate]:
    """The first offers, in their order, that together are enough; [] when all are not."""
    given = [(other, len(slots)) for other, slots in offers if slots]
    chosen: list[Candidate] = []
    for other, count in given:
        chosen.append(other)
        wanted -= count
        if wanted <= 0:
            return chosen
    return []


def _ids(candidates: Iterable[Candidate]) -> tuple[int, ...]:
    return tuple(candidate.job_id for candidate in candidates)


def _places(count: int) -> str:
    return f"{count} place" if count == 1 else f"{count} places"
