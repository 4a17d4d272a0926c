"""One real job through a schedule of disasters: the same code for a handful in a test and for hundreds.

The job is tests/engine/train_job.py on three ranks, its agents are the engine tests' coordinator, and what it
decides is what ``jobs.recovery.plan`` decides. Standbys are warmed again after each recovery.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.link import AdoptReady, Blocked, Regrouped
from agent.protocol import Limits
from tests.engine.harness import Coordinator, Hatchery, Story, Worker, read_story, run_twin

from .disasters import HANGS, Disaster, steps_of

SCRIPT = Path(__file__).resolve().parents[1] / "engine" / "train_job.py"
RANKS = 3
STANDBYS = 3


@dataclass(frozen=True)
class Counters:
    """What a process holds, by the kernel's count."""

    fds: int
    threads: int
    shared_maps: int
    rss_mb: float

    @classmethod
    def of(cls, pid: int) -> Counters:
        process = Path(f"/proc/{pid}")
        status = dict(
            line.split(":", 1)
            for line in (process / "status").read_text().splitlines()
            if ":" in line
        )
        maps = (process / "maps").read_text().splitlines()
        return cls(
            fds=len(os.listdir(process / "fd")),
            threads=int(status["Threads"]),
            shared_maps=sum("memfd:" in line or "/dev/shm" in line for line in maps),
            rss_mb=int(status["VmRSS"].split()[0]) / 1024,
        )


@dataclass
class Outcome:
    """What came of a schedule."""

    story: Story
    twin: Story
    steps: int
    decisions: list[Any]
    moved: list[tuple[int, str, str]]
    pauses_ms: list[float]
    generations: int
    counters: list[Counters] = field(default_factory=list)
    """of the rank that lived through everything, after each generation's first commits"""
    store_keys: list[int] = field(default_factory=list)
    store_prefixes: list[int] = field(default_factory=list)
    """a generation's keys go with its prefix, so these must not grow"""

    def differences(self) -> list[str]:
        """Where it is not the unbroken run. A rank that died between a step and its line wrote none."""
        found = [
            f"rank {rank} step {step}: {kind} differ"
            for kind in ("digests", "commits")
            for (rank, step), value in getattr(self.story, kind).items()
            if getattr(self.twin, kind)[(rank, step)] != value
        ]
        last = {(rank, self.steps) for rank in range(RANKS)}
        found += [f"{key}: no digest of the last step" for key in last - self.story.digests.keys()]
        return found


@dataclass
class Run:
    """Leads one job through ``disasters``."""

    hatchery: Hatchery
    folder: Path
    disasters: list[Disaster]
    kind: str
    environment: dict[str, str] = field(default_factory=dict)

    def go(self, timeout_s: float) -> Outcome:
        steps = steps_of(self.disasters)
        settings = {
            "JOB_KIND": self.kind, "JOB_STEPS": str(steps), "YOCO_DIGEST_EVERY": "1",
            **self.environment,
        }  # fmt: skip
        job = Coordinator(
            self.hatchery, self.folder, SCRIPT, ranks=RANKS, standbys=STANDBYS,
            environment={**settings, "JOB_KILL": ",".join(d.words for d in self.disasters)},
            limits=Limits(stall_s=2.0, collective_s=60.0, blocked_s=300.0, join_s=60.0),
        )  # fmt: skip
        try:
            outcome = self._through(job, steps, timeout_s)
        finally:
            job.close()
        twin_folder = self.folder / "twin"
        twin_folder.mkdir()
        outcome.twin = run_twin(
            self.hatchery, twin_folder, SCRIPT, ranks=RANKS, environment=settings
        )
        return outcome

    def _through(self, job: Coordinator, steps: int, timeout_s: float) -> Outcome:
        outcome = Outcome(
            Story({}, {}), Story({}, {}), steps, job.decisions, job.moved, job.pauses_ms, 0
        )
        job.on_message = self._watch(job)
        job.open_gate()
        sampled = 0

        def over() -> bool:
            nonlocal sampled
            self._top_up(job)
            watched = job.ranks[0]
            proven = watched.committed and watched.committed[-1].generation == job.generation
            if proven and job.generation > sampled and not watched.exited:
                sampled = job.generation
                outcome.counters.append(Counters.of(watched.pid))
                outcome.store_keys.append(job.store.num_keys())
                outcome.store_prefixes.append(job.store.num_prefixes())
            return job.finished()

        job.run(over, timeout_s)
        outcome.story, outcome.generations = read_story(job.file), job.generation
        return outcome

    def _top_up(self, job: Coordinator) -> None:
        alive = sum(1 for w in job.workers if w.rank is None and not w.exited)
        for _ in range(STANDBYS - alive):
            job.spawn(None)

    def _watch(self, job: Coordinator) -> Callable[[Worker, Any], None]:
        by_generation = {d.generation: d for d in self.disasters}
        done: set[int] = set()

        def once(generation: int) -> bool:
            first = generation not in done
            done.add(generation)
            return first

        def heard(worker: Worker, message: Any) -> None:
            now = by_generation.get(job.generation)
            before = by_generation.get(job.generation - 1)
            stalled = isinstance(message, Blocked) and message.outcome == "stalled"
            hangs = now is not None and now.how in HANGS
            if stalled and hangs and message.generation == job.generation:
                job.kill(now.rank)
            if before is None:
                return
            if before.extra == "adopting":
                ends = isinstance(message, AdoptReady)
            elif before.extra == "second":
                ends = isinstance(message, Regrouped) and message.rank not in (0, before.rank)
            else:
                return
            if ends and once(job.generation):
                signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

        for disaster in self.disasters:
            if disaster.extra == "node":
                job.lost_nodes.add((disaster.generation, disaster.rank))
        return heard


RSS_GROWTH_MB_MAX = 8.0


def leaks(outcome: Outcome) -> list[str]:
    """What the rank that lived through everything holds at the end beyond what it held after the first."""
    first, last = outcome.counters[0], outcome.counters[-1]
    found = [
        f"{name}: {getattr(first, name)} after the first recovery, {getattr(last, name)} after the last"
        for name in ("fds", "threads", "shared_maps")
        if getattr(last, name) > getattr(first, name)
    ]
    if last.rss_mb > first.rss_mb + RSS_GROWTH_MB_MAX:
        found.append(f"resident memory: {first.rss_mb:.1f} MB, then {last.rss_mb:.1f} MB")
    if outcome.store_prefixes[-1] > outcome.store_prefixes[0]:
        words = f"{outcome.store_prefixes[0]}, then {outcome.store_prefixes[-1]}"
        found.append(f"prefixes of the store: {words}")
    return found


def plain(outcome: Outcome) -> dict[str, Any]:
    """For JSON."""
    return {
        "steps": outcome.steps,
        "recoveries": outcome.generations,
        "identical": not outcome.differences(),
        "moves": [list(move) for move in outcome.moved],
        "pauses_ms": [round(pause, 1) for pause in outcome.pauses_ms],
        "counters": [asdict(c) for c in outcome.counters],
        "store_keys": outcome.store_keys,
    }
