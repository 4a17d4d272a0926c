"""Situations for the planner: plain functions, one a thing."""

from __future__ import annotations

from typing import Any

from agent.protocol import Position
from jobs.recovery import Member, Place, Situation, Standby

FINGERPRINT = "torch-2.13-avx512-1"


def place(number: int, *, suspect: str = "", domain: str = "") -> Place:
    return Place(
        node_id=number,
        name=f"node-{number}",
        failure_domain=domain or f"power-{number}",
        suspect=suspect,
    )


def at(step: int, **changed: Any) -> Position:
    """A rank at fence(step) that has computed on to prepared(step + 1)."""
    fields: dict[str, Any] = {
        "fence": step,
        "prepared": step + 1,
        "applying": step,
        "applied": step,
        "trail_head": f"t{step}",
    }
    return Position(**{**fields, **changed})


def prepared(step: int, *, gradients: bool = False, **changed: Any) -> Position:
    """A rank that has everything for ``step`` and has not begun to apply it."""
    return at(step - 1, has_gradients=gradients, **changed)


def torn(step: int, **changed: Any) -> Position:
    """A rank that ended inside the optimizer's step."""
    return at(step - 1, applying=step, **changed)


def applied_not_fenced(step: int, **changed: Any) -> Position:
    """A rank that ended in the tail: applied, its private state of ``step`` not stored yet."""
    return at(step - 1, applying=step, applied=step, **changed)


def blocked(rank: int, position: Position, **changed: Any) -> Member:
    fields: dict[str, Any] = {
        "rank": rank,
        "worker_id": f"w{rank}",
        "place": place(rank),
        "condition": "blocked",
        "position": position,
        "fingerprint": FINGERPRINT,
    }
    return Member(**{**fields, **changed})


def dead(rank: int, position: Position | None, **changed: Any) -> Member:
    held: dict[str, Any] = {"custody": "usable" if position is not None else "none"}
    return blocked(rank, position, **{"condition": "exited", **held, **changed})  # type: ignore[arg-type]


def silent(rank: int, **changed: Any) -> Member:
    return blocked(rank, None, **{"condition": "silent", **changed})  # type: ignore[arg-type]


def standby(number: int, **changed: Any) -> Standby:
    fields: dict[str, Any] = {
        "worker_id": f"s{number}",
        "place": place(number),
        "warm": True,
        "fingerprint": FINGERPRINT,
    }
    return Standby(**{**fields, **changed})


def situation(*members: Member, spares: tuple[Standby, ...] = (), **changed: Any) -> Situation:
    fields: dict[str, Any] = {
        "members": members,
        "standbys": spares or (standby(9),),
    }
    return Situation(**{**fields, **changed})
