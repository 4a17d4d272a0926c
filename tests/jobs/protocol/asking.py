"""A world that is over, as the platform sees it, and the real planner's answer."""

from __future__ import annotations

from collections.abc import Sequence

from agent.protocol import Position
from jobs.recovery import GiveUp, Kept, Member, Place, Plan, Situation, Standby, Wait, plan

from .carrying import KeptState
from .machine import Life, Rank, Rules

_NUMERICS = "alike"


def decide(
    ranks: Sequence[Rank], kept: Sequence[KeptState], resumed_at: int, rules: Rules
) -> Plan | Wait | GiveUp:
    everybody = frozenset(range(rules.size))
    members = tuple(
        Member(
            rank=number,
            worker_id=f"w{number}",
            place=_place(number),
            condition="silent" if rank.life == Life.LOST else _condition(rank),
            position=None if rank.life == Life.LOST else position_of(rank, number, rules),
            custody="usable" if rank.life == Life.DEAD else "none",
            replica_group=frozenset({number}) if rules.shadow else everybody,
            kept=tuple(_kept(index, item, rules) for index, item in enumerate(kept) if item.rank == number),
            fingerprint=_NUMERICS,
        )
        for number, rank in enumerate(ranks)
    )  # fmt: skip
    standbys = tuple(
        Standby(worker_id=f"s{n}", place=_place(200 + n), warm=True, fingerprint=_NUMERICS)
        for n in range(rules.size)
    )
    return plan(Situation(members=members, standbys=standbys, resumed_at=resumed_at))


def position_of(rank: Rank, number: int, rules: Rules) -> Position:
    before = str((number - 1) % rules.size)
    held = sorted(step for step in rank.copies if step >= 0)
    return Position(
        fence=rank.fence,
        prepared=rank.prepared,
        applying=rank.applying,
        applied=rank.applied,
        has_gradients=rules.shadow and rank.prepared >= 0,
        shadow=rank.shadow,
        holds={before: held} if held else {},
    )


def _condition(rank: Rank) -> str:
    return "blocked" if rank.life == Life.BLOCKED else "exited"


def _kept(index: int, item: KeptState, rules: Rules) -> Kept:
    lost = item.state.life == Life.LOST
    return Kept(
        worker_id=f"k{index}",
        place=_place(100 + index),
        position=Position() if lost else position_of(item.state, item.rank, rules),
        resume_at=item.resume_at,
        live=False,
        reachable=not lost,
    )


def _place(number: int) -> Place:
    return Place(node_id=number, name=f"node-{number}", failure_domain=f"power-{number}")
