"""A schedule of disasters, made from a seed before the job begins: one for each generation."""

from __future__ import annotations

import random
from dataclasses import dataclass

POINTS = (
    "data", "forward", "backward", "prepared", "voted", "before", "inside", "after", "tail",
)  # fmt: skip
PAST = ("after", "tail")
HOWS = ("kill", "stop", "segv", "exception", "memory", "gil")
HANGS = frozenset({"stop", "gil"})
"""What others notice only because nothing comes: its agent ends it."""
EXTRAS = ("", "", "", "adopting", "second", "node")
"""What the coordinator adds: the target dies while it adopts, a survivor dies once it has met the others, the
rank's node goes with it."""
FIRST_STEP = 6
STRIDE = 2
"""Steps between two disasters: each generation commits at least one."""


@dataclass(frozen=True)
class Disaster:
    generation: int
    rank: int
    step: int
    point: str
    how: str
    extra: str = ""

    @property
    def words(self) -> str:
        """As train_job.py takes it."""
        # Where the step has been counted already its number is one more than where it has not.
        return f"{self.rank}:{self.step}:{self.point}:{self.generation}:{self.how}"


def around_the_vote(seed: int, number: int, ranks: int) -> list[Disaster]:
    """Killed at a point near the vote, or so many microseconds after it began."""
    chance = random.Random(seed)
    points = ("prepared", "voted", "before", "inside", "after", "tail")
    found: list[Disaster] = []
    for generation in range(number):
        delay = f"around+{int(chance.expovariate(1 / 1500))}"
        point = delay if chance.random() < 0.6 else chance.choice(points)
        step = FIRST_STEP + STRIDE * generation - (point == "after")
        found.append(Disaster(generation, chance.randrange(ranks), step, point, "kill"))
    return found


def of_every_kind(seed: int, number: int, ranks: int, *, nodes: bool) -> list[Disaster]:
    """Every way to end at every point, in a random order. Rank 0 is spared: it is the one that is watched."""
    chance = random.Random(seed)
    hows = _shuffled(chance, HOWS, number)
    points = _shuffled(chance, POINTS, number)
    extras = _shuffled(chance, EXTRAS, number)
    found: list[Disaster] = []
    generation = 0
    for turn in range(number):
        point, extra = points[turn], extras[turn]
        if extra == "node" and not nodes:
            extra = ""
        step = FIRST_STEP + STRIDE * turn - (point == "after")
        rank = chance.randrange(1, ranks)
        found.append(Disaster(generation, rank, step, point, hows[turn], extra))
        generation += 2 if extra in ("adopting", "second") else 1
    return found


def _shuffled(chance: random.Random, items: tuple[str, ...], number: int) -> list[str]:
    found: list[str] = []
    while len(found) < number:
        turn = list(items)
        chance.shuffle(turn)
        found += turn
    return found[:number]


def steps_of(disasters: list[Disaster]) -> int:
    return max(disaster.step for disaster in disasters) + 4
