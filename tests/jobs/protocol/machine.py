"""One rank of engine.md's protocol as a small machine: what it writes, in which order, where it can stop.

A rank is a frozen tuple. Beside what everybody can read of it (the marks of its header page and the slots in
its agent's hands) it carries what nobody can: ``weights``, the step its arena is really at, ``TORN`` while
the optimizer writes. Every write is a step of its own, so a rank may die between any two. Nothing here knows
the commit rule.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Literal, NamedTuple

NONE = -1
TORN = -2
Slot = tuple[int, int]
"""The steps of the two blobs of a slot pair, by step parity."""
EMPTY: Slot = (NONE, NONE)


class Violation(AssertionError):
    """The protocol, as the planner leads it, does what must never happen."""


class Life(IntEnum):
    RUNS, BLOCKED, DEAD, LOST = range(4)


class At(IntEnum):
    """Where a rank stands, in the order it passes them."""

    ADOPT = 0
    RESTORED_SLOTS = 1
    RESTORED_APPLYING = 2
    RESTORED_APPLIED = 3
    RESTORED = 4
    PREPARED_SLOT = 5
    FINISH = 6
    MEET = 7
    DATA = 8
    ENTERED = 9
    GRADIENTS = 10
    PREPARED_0 = 11
    PREPARED_1 = 12
    EXCHANGE = 13
    COPY_0 = 14
    BALLOT = 15
    VOTING = 16
    PASSED = 17
    APPLYING = 18
    OPTIMIZER_0 = 19
    OPTIMIZER_1 = 20
    SMALL_0 = 21
    SMALL_1 = 22
    TAIL = 23
    FENCE_0 = 24
    FENCE_1 = 25
    FENCE_2 = 26


class Rank(NamedTuple):
    life: Life
    at: At
    step: int
    """the step it works on; alone: the one it finishes without the others"""
    alone: bool
    finish: str
    fence: int
    prepared: int
    applying: int
    applied: int
    shadow: int
    fences: Slot
    prepareds: Slot
    smalls: Slot
    copies: Slot
    """of the rank before it in the ring"""
    weights: int
    mirror: int
    """the step the shadow arena is really at"""


class Rules(NamedTuple):
    size: int
    shadow: bool
    """no replica: gradients are kept and the arena is mirrored. Else: replicas, and a ring of copies."""
    last: int
    """no rank votes on a step beyond this one"""


def put(slot: Slot, step: int, value: int) -> Slot:
    return (value, slot[1]) if step % 2 == 0 else (slot[0], value)


def has(slot: Slot, step: int) -> bool:
    return slot[step % 2] == step


def progress(rank: Rank) -> tuple[int, int]:
    """Comparable between ranks of one generation."""
    if rank.at <= At.MEET or rank.alone:
        return (0, int(rank.at == At.MEET))
    return (rank.step, rank.at)


def begin(step: int, rules: Rules) -> Rank:
    """At fence(step), in the middle of a job, or at its start when ``step`` is 0."""
    before = step - 1 if step else NONE
    slot = put(put(EMPTY, step, step), before, before) if step else (0, NONE)
    last = put(EMPTY, step, step) if step else EMPTY
    return Rank(
        life=Life.RUNS, at=At.DATA, step=step + 1, alone=False, finish="",
        fence=step, prepared=step if step else NONE, applying=step, applied=step, shadow=NONE,
        fences=slot, prepareds=last, smalls=slot, copies=EMPTY if rules.shadow else last,
        weights=step, mirror=TORN,
    )  # fmt: skip


BLOCKS = frozenset({At.MEET, At.DATA, At.ENTERED, At.EXCHANGE, At.BALLOT, At.VOTING, At.TAIL})
"""Where a broken generation can be noticed. Elsewhere a rank goes on to the next of these."""


def can_block(rank: Rank) -> bool:
    return rank.at in BLOCKS and not (rank.alone and rank.at == At.TAIL)


Need = tuple[Literal["all", "before"], tuple[int, int] | None]


def needs(rank: Rank, rules: Rules) -> Need | None:
    """How far others (all, or the one before in the ring) must have come for its next move; None: never."""
    match rank.at:
        case At.MEET:
            return ("all", (0, 1))
        case At.ENTERED:
            return ("all", (rank.step, At.ENTERED))
        case At.EXCHANGE:
            return ("before", (rank.step, At.EXCHANGE))
        case At.VOTING:
            return ("all", (rank.step, At.VOTING) if rank.step <= rules.last else None)
    return None


def move(rank: Rank, rules: Rules) -> Rank:
    """The next write of a rank that may go on. Adoption's first move is the caller's."""
    return _MOVES[rank.at](rank, rules)


def _to(at: At) -> Callable[[Rank, Rules], Rank]:
    return lambda rank, _rules: rank._replace(at=at)


def _prepare_0(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.PREPARED_0, prepareds=put(rank.prepareds, rank.step, NONE))


def _prepare_1(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.PREPARED_1, prepareds=put(rank.prepareds, rank.step, rank.step))


def _prepared(rank: Rank, rules: Rules) -> Rank:
    then = At.BALLOT if rules.shadow or rules.size == 1 else At.EXCHANGE
    return rank._replace(at=then, prepared=rank.step)


def _copy_0(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.COPY_0, copies=put(rank.copies, rank.step, NONE))


def _copied(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.BALLOT, copies=put(rank.copies, rank.step, rank.step))


def _passed(rank: Rank, rules: Rules) -> Rank:
    """The mirror is whole before its source is written."""
    if rules.shadow:
        rank = rank._replace(shadow=rank.weights, mirror=rank.weights)
    return rank._replace(at=At.APPLYING, applying=rank.step)


def _tear(rank: Rank, _rules: Rules) -> Rank:
    if rank.weights != rank.step - 1:
        raise Violation(f"step {rank.step} is applied to weights of step {rank.weights}")
    return rank._replace(at=At.OPTIMIZER_0, weights=TORN)


def _apply(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.OPTIMIZER_1, weights=rank.step)


def _small_0(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.SMALL_0, smalls=put(rank.smalls, rank.step, NONE))


def _small_1(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.SMALL_1, smalls=put(rank.smalls, rank.step, rank.step))


def _applied(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.TAIL, applied=rank.step)


def _fence_0(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.FENCE_0, fences=put(rank.fences, rank.step, NONE))


def _fence_1(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.FENCE_1, fences=put(rank.fences, rank.step, rank.step))


def _fenced(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.FENCE_2, fence=rank.step)


def _next(rank: Rank, rules: Rules) -> Rank:
    """The mirror is written from here on; the next step begins, or the others are met."""
    if rules.shadow:
        rank = rank._replace(shadow=NONE, mirror=TORN)
    if rank.alone:
        return rank._replace(at=At.MEET, finish="")
    return rank._replace(at=At.DATA, step=rank.step + 1)


def _met(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.DATA, step=rank.step + 1, alone=False)


def _restored_applying(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.RESTORED_APPLYING, applying=_arena_step(rank))


def _restored_applied(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.RESTORED_APPLIED, applied=_arena_step(rank))


def _restored(rank: Rank, _rules: Rules) -> Rank:
    if rank.finish == "none":
        return rank._replace(at=At.MEET, fence=rank.step)
    return rank._replace(at=At.RESTORED, fence=rank.step - 1)


def _arena_step(rank: Rank) -> int:
    return rank.step - 1 if rank.finish == "apply" else rank.step


def _prepared_slot(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.PREPARED_SLOT, prepareds=put(rank.prepareds, rank.step, rank.step))


def _prepared_mark(rank: Rank, _rules: Rules) -> Rank:
    return rank._replace(at=At.FINISH, prepared=rank.step)


def _finish(rank: Rank, _rules: Rules) -> Rank:
    """Forward and backward have run in the sandbox: apply, or skip to the tail."""
    then = At.APPLYING if rank.finish == "apply" else At.TAIL
    return rank._replace(at=then, applying=rank.step)


_MOVES: dict[At, Callable[[Rank, Rules], Rank]] = {
    At.RESTORED_SLOTS: _restored_applying,
    At.RESTORED_APPLYING: _restored_applied,
    At.RESTORED_APPLIED: _restored,
    At.RESTORED: _prepared_slot,
    At.PREPARED_SLOT: _prepared_mark,
    At.FINISH: _finish,
    At.MEET: _met,
    At.DATA: _to(At.ENTERED),
    At.ENTERED: _to(At.GRADIENTS),
    At.GRADIENTS: _prepare_0,
    At.PREPARED_0: _prepare_1,
    At.PREPARED_1: _prepared,
    At.EXCHANGE: _copy_0,
    At.COPY_0: _copied,
    At.BALLOT: _to(At.VOTING),
    At.VOTING: _to(At.PASSED),
    At.PASSED: _passed,
    At.APPLYING: _tear,
    At.OPTIMIZER_0: _apply,
    At.OPTIMIZER_1: _small_0,
    At.SMALL_0: _small_1,
    At.SMALL_1: _applied,
    At.TAIL: _fence_0,
    At.FENCE_0: _fence_1,
    At.FENCE_1: _fenced,
    At.FENCE_2: _next,
}
