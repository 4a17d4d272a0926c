"""Where the ranks of this node stand, read from their header pages, and which of them have not moved.

A rank that hangs says nothing: the process may be stopped, or native code may hold its GIL. Its page is
shared memory and can be read all the same. Whether standing still is a hang depends on the other ranks:
the platform judges, it alone hears of all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .protocol import GroupStanding, Standing
from .states import WorkerState
from .transfer.arena import GroupTally, Header, Phase
from .workers import Worker

LOOK_S = 0.5
SLACK = 5.0
"""A rank stands still once it has not moved for this many of its own usual steps."""


@dataclass(frozen=True)
class Place:
    """What a rank's page shows. Two equal places, one after the other: it has not moved."""

    generation: int
    phase: int
    since_ns: int
    applied: int
    groups: tuple[GroupTally, ...]

    @classmethod
    def of(cls, header: Header) -> Place:
        get = header.get
        return cls(
            generation=get("generation"),
            phase=get("phase"),
            since_ns=get("phase_since_ns"),
            applied=get("applied"),
            groups=tuple(header.groups()),
        )

    @property
    def phase_word(self) -> str:
        return Phase.WORDS[self.phase] if 0 <= self.phase < len(Phase.WORDS) else "unknown"


@dataclass(frozen=True)
class _Seen:
    place: Place
    since_ns: int


class Standings:
    """Looks at every rank twice a second. ``look`` may be called at any other time, too."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.on_still: Callable[[], None] = lambda: None
        self._workers = workers
        self._seen: dict[str, _Seen] = {}

    async def run(self) -> None:
        """Call ``on_still`` when a rank has come to stand still and when it moves again: heartbeats tell
        of it in between."""
        before: set[str] = set()
        while True:
            self.look()
            still = {w.record.worker_id for w in self._workers if self.standing(w) is not None}
            if still != before:
                before = still
                self.on_still()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Note which ranks have moved since the last look."""
        now_ns = time.monotonic_ns()
        here = {}
        for worker in self._workers:
            header = worker.custody.header
            if header is None or worker.record.rank is None or not worker.alive:
                continue
            name, place = worker.record.worker_id, Place.of(header)
            seen = self._seen.get(name)
            here[name] = seen if seen and seen.place == place else _Seen(place, now_ns)
        self._seen = here

    def still_s(self, worker: Worker) -> float:
        """Seconds since this rank last moved, as of now."""
        self.look()
        seen = self._seen.get(worker.record.worker_id)
        return 0.0 if seen is None else (time.monotonic_ns() - seen.since_ns) / 1e9

    def place(self, worker: Worker) -> Place | None:
        seen = self._seen.get(worker.record.worker_id)
        return None if seen is None else seen.place

    def standing(self, worker: Worker) -> Standing | None:
        """Where a rank stands that has not moved for too long to be its usual pace; else None."""
        seen, header = self._seen.get(worker.record.worker_id), worker.custody.header
        if seen is None or header is None or worker.record.state != WorkerState.RUNNING:
            return None
        if seen.place.generation != worker.record.generation:
            return None
        now_ns = time.monotonic_ns()
        standing = standing_of(header, seen.place, (now_ns - seen.since_ns) / 1e9, now_ns)
        return standing if stands_still(standing, worker.record.limits.stall_s) else None


def standing_of(header: Header, place: Place, still_s: float, now_ns: int) -> Standing:
    """A place as the platform hears of it."""
    return Standing(
        phase=place.phase_word,
        step=place.applied,
        still_s=still_s,
        beat_s=max(now_ns - header.get("beat_ns"), 0) / 1e9,
        usual_s=max(header.get("usual_ns"), 0) / 1e9,
        groups=[GroupStanding(key=g.key, issued=g.issued, pending=g.pending) for g in place.groups],
    )


def stands_still(standing: Standing, stall_s: float) -> bool:
    return standing.still_s >= max(stall_s, SLACK * standing.usual_s)
