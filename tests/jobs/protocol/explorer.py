"""Every way in which a generation can end, and what the real planner makes of it.

``explore`` walks all reachable states, each once. A generation is over once no rank of it moves; then the
real ``jobs.recovery.plan`` is asked, every one of its moves is carried out on what is really there, and the
next generation begins. Failures (a process, a node, also of a newcomer or of a node that only keeps state)
come at any moment, at most ``failures`` of them; a network that breaks without one is always possible.

**Reduction** (``every_order`` False). A write of one rank neither reads nor changes what another rank reads,
and where one waits for others it waits for something that stays true. So the order of two such moves does
not matter, and only one rank is led on at a time: on, or stopped there by an interrupt or its death. That
interrupts come before the death that causes them is no loss: each rank could have been led to where it stops
first, and the failures follow. Ranks differ by their number alone, so turning the ring changes nothing
(without a ring of copies any order of the ranks is the same). test_protocol.py compares the ends found so
with those of every order of moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from jobs.recovery import GiveUp, Plan

from . import carrying
from .asking import decide
from .carrying import Filling
from .machine import At, Life, Rank, Rules, begin, can_block, move, needs, progress


class Kept(NamedTuple):
    """What an agent still holds of a rank that has moved away."""

    rank: int
    state: Rank
    resume_at: int


class Seat(NamedTuple):
    """One rank: its machine, where the state it adopts comes from, and (state, resume_at) that is kept of it.

    Ranks and fillings are numbers in the walk's tables: equal ones have one number.
    """

    rank: int
    filling: int
    kept: tuple[tuple[int, int], ...]


class World(NamedTuple):
    generation: int
    resumed_at: int
    seats: tuple[Seat, ...]
    left: int
    """failures that may still come"""
    broken: bool
    """in every order only: somebody may notice that the generation is over"""


@dataclass
class Found:
    """What was seen. ``given_up``: code -> how often; each was checked to be unavoidable."""

    num_states: int = 0
    ends: dict[int, set[object]] = field(default_factory=dict)
    num_plans: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    given_up: dict[str, int] = field(default_factory=dict)


NOTHING = -1
GENERATIONS = 3


class Table:
    """Ranks by number, with what is asked of them again and again."""

    def __init__(self, rules: Rules) -> None:
        self.ranks: list[Rank] = []
        self._numbers: dict[Rank, int] = {}
        self.move = cache(lambda number: self.of(move(self.ranks[number], rules)))
        self.blocked = cache(lambda number: self.of(self.ranks[number]._replace(life=Life.BLOCKED)))
        self.dead = cache(lambda number: self.of(self.ranks[number]._replace(life=Life.DEAD)))
        self.lost = cache(lambda number: self.of(_lost(self.ranks[number])))
        self.readable = cache(lambda number: self.of(_readable(self.ranks[number])))
        self.progress = cache(lambda number: progress(self.ranks[number]))
        self.life = cache(lambda number: self.ranks[number].life)
        self.needs = cache(lambda number: needs(self.ranks[number], rules))

    def of(self, rank: Rank) -> int:
        number = self._numbers.setdefault(rank, len(self.ranks))
        if number == len(self.ranks):
            self.ranks.append(rank)
        return number


class Walk:
    def __init__(self, rules: Rules, every_order: bool) -> None:
        self.rules = rules
        self.every_order = every_order
        self.found = Found()
        self.table = Table(rules)
        self.fillings: list[Filling] = []

    def run(self, step: int, failures: int) -> Found:
        seat = Seat(self.table.of(begin(step, self.rules)), NOTHING, ())
        start = World(0, step, (seat,) * self.rules.size, failures, not self.every_order)
        seen = {start}
        waiting = [start]
        while waiting:
            for after in self._successors(waiting.pop()):
                world = after if self.every_order else self._canonical(after)
                if world not in seen:
                    seen.add(world)
                    waiting.append(world)
        self.found.num_states = len(seen)
        return self.found

    def _successors(self, world: World) -> Iterator[World]:
        life = self.table.life
        running = [n for n, seat in enumerate(world.seats) if life(seat.rank) == Life.RUNS]
        if self.every_order:
            yield from self._any_order(world, running)
            if not running and world.broken:
                yield from self._over(world)
        elif running:
            yield from self._one_rank(world, running)
        else:
            yield from self._over(world)

    # --- moves within a generation ---

    def _any_order(self, world: World, running: list[int]) -> Iterator[World]:
        for number in running:
            if self._may_go(world, number):
                yield self._moved(world, number)
            if world.broken:
                yield from self._stopped(world, number)
        for number, seat in enumerate(world.seats):
            if self.table.life(seat.rank) in (Life.RUNS, Life.BLOCKED):
                yield from self._died(world, number)
        if running and not world.broken:
            yield world._replace(broken=True)

    def _one_rank(self, world: World, running: list[int]) -> Iterator[World]:
        free = next((number for number in running if self._may_go(world, number)), None)
        number = running[0] if free is None else free
        if free is not None:
            yield self._moved(world, number)
        yield from self._stopped(world, number)
        yield from self._died(world, number)

    def _may_go(self, world: World, number: int) -> bool:
        seat = world.seats[number]
        if seat.filling != NOTHING:
            source = self._replica(world, number)
            return source is None or carrying.at_rest(self.fillings[seat.filling], source)
        need = self.table.needs(seat.rank)
        if need is None:
            return True
        whom, least = need
        if least is None:
            return False
        progressed = self.table.progress
        others = world.seats if whom == "all" else (world.seats[number - 1],)
        return all(progressed(other.rank) >= least for other in others)

    def _replica(self, world: World, number: int) -> Rank | None:
        offset = self.fillings[world.seats[number].filling].replica
        if offset == NOTHING:
            return None
        return self.table.ranks[world.seats[(number + offset) % self.rules.size].rank]

    def _moved(self, world: World, number: int) -> World:
        seat = world.seats[number]
        if seat.filling == NOTHING:
            return _sit(world, number, seat._replace(rank=self.table.move(seat.rank)))
        filling = self.fillings[seat.filling]
        filled = carrying.filled(self.table.ranks[seat.rank], filling, self._replica(world, number))
        return _sit(world, number, seat._replace(rank=self.table.of(filled), filling=NOTHING))

    def _stopped(self, world: World, number: int) -> Iterator[World]:
        """Interrupted here. A target that is not filled yet is ended by the platform."""
        seat = world.seats[number]
        rank = self.table.ranks[seat.rank]
        if rank.at == At.ADOPT:
            yield _sit(
                world, number, seat._replace(rank=self.table.dead(seat.rank), filling=NOTHING)
            )
        elif can_block(rank):
            yield _sit(world, number, seat._replace(rank=self.table.blocked(seat.rank)))

    def _died(self, world: World, number: int) -> Iterator[World]:
        if world.left:
            seat = world.seats[number]
            after = world._replace(left=world.left - 1, broken=True)
            for end in (self.table.dead(seat.rank), self.table.lost(seat.rank)):
                yield _sit(after, number, seat._replace(rank=end, filling=NOTHING))

    # --- from one generation to the next ---

    def _over(self, world: World) -> Iterator[World]:
        for state in self._kept_nodes_lost(world):
            seats = tuple(
                Seat(self.table.readable(seat.rank), NOTHING, seat.kept) for seat in state.seats
            )
            end = self._canonical(state._replace(seats=seats, broken=False))
            known = self.found.ends.setdefault(world.generation, set())
            named = self._named(end)
            if named not in known:
                known.add(named)
                yield from self._next_generation(end)

    def _kept_nodes_lost(self, world: World) -> Iterator[World]:
        """A node that only keeps state may be lost too; when it was does not matter to anybody else."""
        yield world
        if not world.left:
            return
        for number, seat in enumerate(world.seats):
            for index in range(len(seat.kept)):
                kept = seat.kept[:index] + seat.kept[index + 1 :]
                after = world._replace(left=world.left - 1)
                yield _sit(after, number, seat._replace(kept=kept))

    def _named(self, end: World) -> object:
        """The same for every walk, whatever numbers its tables gave."""
        ranks = self.table.ranks
        seats = tuple(
            (ranks[s.rank], tuple((ranks[k], step) for k, step in s.kept)) for s in end.seats
        )
        turns = [seats[n:] + seats[:n] for n in range(len(seats))]
        return (
            end.resumed_at,
            end.left,
            min(turns) if not self.rules.shadow else tuple(sorted(seats)),
        )

    def _next_generation(self, world: World) -> Iterator[World]:
        ranks = [self.table.ranks[seat.rank] for seat in world.seats]
        kept = [
            Kept(number, self.table.ranks[state], step)
            for number, seat in enumerate(world.seats)
            for state, step in seat.kept
        ]
        if all(rank.life == Life.LOST for rank in ranks):
            _count(self.found.given_up, "unreachable")
            return
        decision = decide(ranks, kept, world.resumed_at, self.rules)
        ground = carrying.Ground(ranks, kept, world.resumed_at, self.rules)
        if isinstance(decision, GiveUp):
            carrying.check_given_up(decision, ground)
            _count(self.found.given_up, decision.code)
            return
        assert isinstance(decision, Plan), decision
        self.found.num_plans += 1
        for planned in decision.moves:
            _count(self.found.sources, planned.source)
        carrying.check_step(decision.resume_at, ground)
        started = self._begun(world, decision, ground)
        if started.generation >= GENERATIONS or not world.left:
            self._through(started, decision.resume_at)
        else:
            yield started

    def _begun(self, world: World, decision: Plan, ground: carrying.Ground) -> World:
        step = decision.resume_at
        fillings = carrying.fillings(decision, ground)
        seats: list[Seat] = []
        for seat, rank, filling in zip(
            world.seats, carrying.led_on(decision, ground), fillings, strict=True
        ):
            kept = tuple(item for item in seat.kept if item[1] == step)
            place = NOTHING
            if filling is not None:
                left = self.table.ranks[seat.rank]
                kept = kept if left.life == Life.LOST else (*kept, (seat.rank, step))
                if filling not in self.fillings:
                    self.fillings.append(filling)
                place = self.fillings.index(filling)
            seats.append(Seat(self.table.of(rank), place, kept))
        return World(world.generation + 1, step, tuple(seats), world.left, not self.every_order)

    def _through(self, world: World, step: int) -> None:
        """No failure is left: everybody gets to the meeting, and stands at ``step`` there."""
        ranks = self.table.ranks
        while True:
            late = [n for n, seat in enumerate(world.seats) if ranks[seat.rank].at != At.MEET]
            if not late:
                break
            world = self._moved(world, next(n for n in late if self._may_go(world, n)))
        carrying.check_met([ranks[seat.rank] for seat in world.seats], step)

    def _canonical(self, world: World) -> World:
        if self.rules.shadow:
            return world._replace(seats=tuple(sorted(world.seats)))
        seats = world.seats
        return world._replace(seats=min(seats[n:] + seats[:n] for n in range(len(seats))))


def explore(rules: Rules, *, step: int, failures: int, every_order: bool = False) -> Found:
    """All of it, from a job that stands at fence(``step``). Raises Violation."""
    return Walk(rules, every_order).run(step, failures)


def _sit(world: World, number: int, seat: Seat) -> World:
    return world._replace(seats=(*world.seats[:number], seat, *world.seats[number + 1 :]))


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _lost(rank: Rank) -> Rank:
    """Nobody reads it again. How far it had come still counts for those who waited for it."""
    nothing = carrying.newcomer(0, "none")
    return nothing._replace(life=Life.LOST, at=rank.at, step=rank.step, alone=rank.alone)


def _readable(rank: Rank) -> Rank:
    """A rank as the next generation can know it."""
    if rank.life == Life.BLOCKED and rank.at == At.VOTING:
        return rank._replace(alone=False, finish="")
    return rank._replace(at=At.DATA, step=0, alone=False, finish="")
