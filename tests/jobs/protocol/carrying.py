"""What the engine and the agents do with a plan, and what must never come of it.

Nothing is believed that the planner believed: whether a source is whole is read from the slots and from the
step its arena is really at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jobs.recovery import GiveUp, MovePlan, Plan

from .machine import EMPTY, NONE, TORN, At, Life, Rank, Rules, Slot, Violation, has, put


class KeptState(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def state(self) -> Rank: ...
    @property
    def resume_at(self) -> int: ...


class Ground(NamedTuple):
    """What a decision is carried out on."""

    ranks: Sequence[Rank]
    kept: Sequence[KeptState]
    resumed_at: int
    rules: Rules


class Filling(NamedTuple):
    """What a target is filled with. ``replica`` >= 0: the arena of the rank so much further on in the ring,
    once it rests at the step."""

    step: int
    finish: str
    replica: int
    weights: int
    fences: Slot
    prepareds: Slot


def newcomer(step: int, finish: str) -> Rank:
    """A warm standby that was told whose place it takes. Its arena holds nonsense."""
    return Rank(
        life=Life.RUNS, at=At.ADOPT, step=step, alone=True, finish=finish,
        fence=NONE, prepared=NONE, applying=NONE, applied=NONE, shadow=NONE,
        fences=EMPTY, prepareds=EMPTY, smalls=EMPTY, copies=EMPTY, weights=TORN, mirror=TORN,
    )  # fmt: skip


def check_step(resume_at: int, ground: Ground) -> None:
    """No step that anybody whom one can still ask has written into its weights is lost, none is invented."""
    everybody = [*ground.ranks, *(item.state for item in ground.kept)]
    readable = [rank for rank in everybody if rank.life != Life.LOST]
    written = max(rank.applying if rank.weights == TORN else rank.weights for rank in readable)
    marked = max(ground.resumed_at, *(rank.applying for rank in readable))
    if not written <= resume_at <= marked:
        raise Violation(
            f"step {written} was applied and {marked} was voted for, "
            f"the next generation begins at {resume_at}"
        )


def led_on(decision: Plan, ground: Ground) -> tuple[Rank, ...]:
    """Every rank of the next generation, as it begins to bring itself to the step."""
    finish = {planned.rank: planned.finish for planned in decision.moves}
    step = decision.resume_at
    return tuple(
        newcomer(step, finish[number]) if number in finish else _stays(rank, step)
        for number, rank in enumerate(ground.ranks)
    )


def _stays(rank: Rank, step: int) -> Rank:
    """agent/training/recovery.py and step.py: what a blocked rank does when it hears ``resume_at``."""
    if rank.life != Life.BLOCKED:
        raise Violation("a rank that has ended was to stay")
    alone = rank._replace(life=Life.RUNS, step=step, alone=True)
    if rank.at == At.VOTING and rank.step == step:
        # The vote is unknown here: what was kept is applied.
        return alone._replace(at=At.PASSED, finish="kept")
    if rank.weights != step or rank.applied != step:
        raise Violation(f"resume at {step} was asked of a rank whose weights are at {rank.weights}")
    if rank.fence == step and has(rank.fences, step):
        return alone._replace(at=At.MEET)
    if has(rank.fences, step - 1) and has(rank.prepareds, step) and has(rank.smalls, step):
        return alone._replace(at=At.FINISH, finish="tail")
    raise Violation(f"the tail of step {step} was cut short and its fence is gone")


# --- Targets ----------------------------------------------------------------------------------------


def fillings(decision: Plan, ground: Ground) -> tuple[Filling | None, ...]:
    found: list[Filling | None] = [None] * len(ground.ranks)
    for planned in decision.moves:
        found[planned.rank] = _filling(planned, decision.resume_at, ground)
    return tuple(found)


def _filling(planned: MovePlan, step: int, ground: Ground) -> Filling:
    replica, weights = NONE, TORN
    fences, prepareds = EMPTY, EMPTY
    for stream in planned.streams:
        node = stream.place.node_id
        source = ground.kept[node - 100].state if node >= 100 else ground.ranks[node]
        if source.life == Life.LOST:
            raise Violation(f"{planned} is to come from a node that is lost")
        if stream.what != "private":
            if stream.holder == "replica" and source.life == Life.BLOCKED:
                replica = (stream.source_rank - planned.rank) % len(ground.ranks)
            else:
                weights = _arena(source, stream.holder)
        if stream.what != "shared":
            fences, prepareds = _private(source, stream.holder, step)
    filling = Filling(step, planned.finish, replica, weights, fences, prepareds)
    _check_private(filling)
    return filling


def _arena(source: Rank, holder: str) -> int:
    """The step of an arena that is given, with its small tensors. agent/sources.py: _arena."""
    if holder == "shadow":
        weights, at = source.mirror, source.shadow
    elif source.applying != source.applied:
        raise Violation("a torn arena is given")
    else:
        weights, at = source.weights, source.applied
    if not has(source.smalls, at):
        raise Violation(f"the arena of step {at} is given without its small tensors")
    return weights


def _private(source: Rank, holder: str, step: int) -> tuple[Slot, Slot]:
    """agent/sources.py: _private. fence(step), else fence(step - 1) and prepared(step)."""
    if holder == "buddy":
        if has(source.copies, step + 1):
            return put(EMPTY, step, step), EMPTY
        if has(source.copies, step):
            return put(EMPTY, step - 1, step - 1), put(EMPTY, step, step)
    elif source.fence == step and has(source.fences, step):
        return put(EMPTY, step, step), EMPTY
    elif has(source.fences, step - 1) and has(source.prepareds, step):
        return put(EMPTY, step - 1, step - 1), put(EMPTY, step, step)
    raise Violation(f"the private state that a {holder} gives does not complete step {step}")


def _check_private(filling: Filling) -> None:
    """agent/training/standby.py refuses what does not fit the way it is finished."""
    step, whole = filling.step, filling.finish == "none"
    if not has(filling.fences, step if whole else step - 1):
        raise Violation(f"finish {filling.finish} of step {step} without the fence it begins at")
    if not whole and not has(filling.prepareds, step):
        raise Violation(f"finish {filling.finish} of step {step} without what was prepared")


def at_rest(filling: Filling, source: Rank) -> bool:
    living = source.life in (Life.RUNS, Life.BLOCKED)
    return living and source.applied == source.applying == filling.step


def filled(rank: Rank, filling: Filling, replica: Rank | None) -> Rank:
    weights = filling.weights if replica is None else replica.weights
    wanted = filling.step - 1 if filling.finish == "apply" else filling.step
    if weights != wanted:
        raise Violation(
            f"a target that finishes step {filling.step} by {filling.finish} is given weights of {weights}"
        )
    smalls = put(EMPTY, wanted, wanted)
    # Of the slots a newcomer writes the fence's now, the prepared one when it begins to finish.
    return rank._replace(
        at=At.RESTORED_SLOTS, weights=weights, smalls=smalls, fences=filling.fences
    )


def check_met(ranks: Sequence[Rank], step: int) -> None:
    """Never a mixed step: weights, marks and private state of all stand at ``step``."""
    for rank in ranks:
        stands = (rank.weights, rank.applied, rank.fence) == (step, step, step)
        if not stands or not has(rank.fences, step):
            raise Violation(f"the generation meets at step {step}, and one rank stands at {rank}")


# --- Giving up --------------------------------------------------------------------------------------


def check_given_up(decision: GiveUp, ground: Ground) -> None:
    """A job is given up only where the state of some rank is nowhere any more."""
    step = decision.resume_at
    check_step(step, ground)
    if all(_is_somewhere(number, step, ground) for number in range(len(ground.ranks))):
        raise Violation(f"given up, and everything is there: {decision}")


def _is_somewhere(number: int, step: int, ground: Ground) -> bool:
    ranks, rules = ground.ranks, ground.rules
    rank = ranks[number]
    if rank.life == Life.BLOCKED:
        return True
    own = [rank] if rank.life == Life.DEAD else []
    own += [
        k.state
        for k in ground.kept
        if k.rank == number and k.resume_at == step and k.state.life != Life.LOST
    ]
    keeper = ranks[(number + 1) % rules.size]
    copied = keeper.life != Life.LOST and (has(keeper.copies, step) or has(keeper.copies, step + 1))
    private = copied or any(_completes(state, step) for state in own)
    if rules.shadow:
        return any(_can_apply(state, step) for state in own) or any(
            _arena_at(state, step) and _completes(state, step) for state in own
        )
    replica = any(other.life == Life.BLOCKED for other in ranks)
    return private and (replica or any(_arena_at(state, step) for state in own))


def _arena_at(state: Rank, step: int) -> bool:
    """There, and known to be: a rank that ends before it marks the end of its apply is torn to everybody."""
    return state.weights == step and state.applying == state.applied


def _completes(state: Rank, step: int) -> bool:
    tail = has(state.fences, step - 1) and has(state.prepareds, step)
    return has(state.fences, step) or tail


def _can_apply(state: Rank, step: int) -> bool:
    mirrored = state.mirror == state.shadow == step - 1
    return (
        (mirrored or _arena_at(state, step - 1))
        and has(state.fences, step - 1)
        and has(state.prepareds, step)
    )
