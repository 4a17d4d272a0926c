"""What the walk over the protocol (tests/jobs/protocol) allows, beside what real processes showed."""

from __future__ import annotations

from functools import cache
from typing import Any

from agent.protocol import Position
from jobs.recovery import Plan, Situation
from tests.jobs.protocol.explorer import explore
from tests.jobs.protocol.machine import Life, Rank, Rules

Marks = tuple[str, tuple[int | None, ...]]
Seen = tuple[tuple[Marks, ...], int, tuple[tuple[str, str], ...]]


@cache
def ends_of(size: int, shadow: bool) -> frozenset[tuple[Marks, ...]]:
    """Every way in which the marks of all ranks can stand when a generation is over, by the model."""
    found = explore(Rules(size, shadow, last=2), step=1, failures=1)
    ends: set[tuple[Marks, ...]] = set()
    for worlds in found.ends.values():
        for _resumed_at, _left, seats in worlds:  # type: ignore[misc]
            ends.add(_marks([_of_model(rank) for rank, _kept in seats]))
    return frozenset(ends)


def _of_model(rank: Rank) -> tuple[str, Rank | None]:
    if rank.life == Life.LOST:
        return "silent", None
    return ("blocked" if rank.life == Life.BLOCKED else "exited"), rank


def marks_of(situation: Situation) -> tuple[Marks, ...]:
    return _marks([(m.condition, m.position) for m in situation.members])


def _marks(members: list[tuple[str, Any]]) -> tuple[Marks, ...]:
    """Relative to the greatest fence, so that any step of a long job can be compared with the model's few."""
    base = max(position.fence for _, position in members if position is not None)
    return tuple(sorted(((condition, _relative(p, base)) for condition, p in members), key=repr))


def _relative(position: Position | Rank | None, base: int) -> tuple[int | None, ...]:
    if position is None:
        return ()
    marks = (position.fence, position.prepared, position.applying, position.applied)
    return tuple(None if mark < 0 else mark - base for mark in marks)


def disagreements(decisions: list[tuple[Situation, Plan]], shadow: bool) -> list[str]:
    """Situations that the model cannot come to, and decisions that the positions in them do not allow."""
    found: list[str] = []
    for situation, decision in decisions:
        if marks_of(situation) not in ends_of(len(situation.members), shadow):
            found.append(f"not among the ends of the model: {marks_of(situation)}")
        positions = [m.position for m in situation.members if m.position is not None]
        least, most = max(p.applied for p in positions), max(p.applying for p in positions)
        if not least <= decision.resume_at <= most:
            found.append(f"resume at {decision.resume_at}, applied {least}, voted {most}")
        for move in decision.moves:
            (member,) = [m for m in situation.members if m.rank == move.rank]
            wanted = _allowed(member.position, decision.resume_at, shadow)
            if (move.source, move.finish) not in wanted:
                found.append(f"{move.source}, {move.finish} at {member.position}: allowed {wanted}")
    return found


def _allowed(position: Position | None, step: int, shadow: bool) -> set[tuple[str, str]]:
    """By engine.md's table, written down without the planner: where a lost rank's state may come from."""
    if position is None:
        return {("replica", "none"), ("replica", "tail")}
    torn = position.applying != position.applied
    finish = "none" if position.fence == step else "tail"
    if not torn and position.applied == step:
        return {("custody", finish)}
    if shadow:
        return {("shadow" if torn else "custody", "apply")}
    return {("replica", finish)}
