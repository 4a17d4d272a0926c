"""The story: a job is trained, failures come from outside, each is healed, proven and booked."""

from __future__ import annotations

import os
import pwd
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .report import Case
from .twin import Twin
from .watch import Row, StoryFailed, Watch
from .world import HOT_C, NORMAL_C, ROOT, World

DIGEST_EVERY = 20


@dataclass
class Chapter:
    """One job and what happened to it, before it is compared with its twin."""

    parallelism: str
    job_id: int
    happened: list[tuple[str, Row, int]] = field(default_factory=list)
    """(case name, incident, digest step to compare at)"""


class Story:
    """Tells chapters on a running world. ``say`` gets one line of progress at a time."""

    def __init__(
        self,
        world: World,
        say: Callable[[str], None],
        *,
        world_size: int = 3,
        step_ms_min: float = 80.0,
        script: Path = ROOT / "examples" / "gpt.py",
    ) -> None:
        self.world, self.say = world, say
        self.world_size, self.step_ms_min = world_size, step_ms_min
        self._path = script
        self.watch = Watch(world, say)

    def tell(self) -> list[Case]:
        """Both chapters; the cases in the order in which they happened."""
        self.watch.nodes_ready([node.name for node in self.world.nodes.values()])
        cases = []
        for parallelism, acts in (
            ("ddp", (self.kill, self.overheat, self.lose_node)),
            ("fsdp2", (self.kill, self.overheat)),
        ):
            chapter = self.begin(parallelism)
            for act in acts:
                act(chapter)
            cases += self.compare(chapter)
        return cases

    def begin(self, parallelism: str) -> Chapter:
        self.say(
            f"[b]{parallelism.upper()}[/]: a GPT on the standard library's source, "
            f"{self.world_size} ranks, 1 standby"
        )
        job = self.watch.rest.post("/jobs", self.job_body(parallelism))
        chapter = Chapter(parallelism, int(job["id"]))
        self.watch.protected(chapter.job_id)
        self.watch.committed(chapter.job_id, DIGEST_EVERY)
        return chapter

    def job_body(self, parallelism: str) -> Row:
        """What the story asks of POST /jobs."""
        pace = ["--step-ms-min", str(self.step_ms_min)]
        return {
            "name": f"gpt-{parallelism}",
            "customer": self.world.seeded.customer,
            "pool": "demo",
            "world_size": self.world_size,
            "command": [sys.executable, *self._script(parallelism), *pace],
            "working_directory": str(self._path.parent),
            "run_as": pwd.getpwuid(os.geteuid()).pw_name,
            "environment": self._environment(),
        }

    # --- what comes from outside ---

    def kill(self, chapter: Chapter) -> None:
        """SIGKILL of a rank's process, sent by nobody the platform knows."""
        job = self.watch.job(chapter.job_id)
        victim = _rank(job, 1)
        self.say(f"SIGKILL of rank 1 on {victim['node']}")
        self.case(
            chapter,
            "kill",
            lambda: os.kill(self.world.worker_pid(victim["id"]), signal.SIGKILL),
        )

    def overheat(self, chapter: Chapter) -> None:
        """A simulated sensor climbs; the node is left before it fails, then cools and returns."""
        job = self.watch.job(chapter.job_id)
        name = self._key(_rank(job, 2)["node"])
        node = self.world.nodes[name]
        self.say(f"{node.name} runs hot: {HOT_C:.0f} °C on its simulated sensor")
        self.case(chapter, "planned-move", lambda: node.heat(HOT_C), protect=False)
        self.say(f"{node.name} cools down to {NORMAL_C:.0f} °C and has to pass its tests")
        node.heat(NORMAL_C)
        self.watch.protected(chapter.job_id)

    def lose_node(self, chapter: Chapter) -> None:
        """Agent, workers and network of a node gone at once, without a word where that is possible."""
        job = self.watch.job(chapter.job_id)
        name = self._key(_rank(job, 0)["node"])
        how = "node-silent" if self.world.network else "node-loss"
        words = (
            "falls silent (packets dropped)" if self.world.network else "is killed, agent and all"
        )
        self.say(f"node-{name} {words}")
        self.case(chapter, how, lambda: self.world.lose(name), protect=False)
        self.say(f"node-{name} is powered off and on again")
        self.world.bring_back(name)
        self.watch.protected(chapter.job_id)

    def case(
        self, chapter: Chapter, name: str, strike: Callable[[], Any], *, protect: bool = True
    ) -> None:
        known = self.watch.incidents(chapter.job_id)
        strike()
        incident = self.watch.incident(chapter.job_id, known)
        self.say(
            f"{incident['number']}: {incident['verdict']}, {incident['verdict_reason']}; "
            f"pause {incident['pause_ms'] or 0:.0f} ms"
        )
        step = self.watch.job(chapter.job_id)["committed_step"] + 1
        self.watch.committed(chapter.job_id, step)
        at = self.watch.digest_step(chapter.job_id, step)
        if at is None:
            raise StoryFailed(f"no digest after step {step}")
        chapter.happened.append((name, incident, at))
        if protect:
            self.watch.protected(chapter.job_id)

    # --- the proof ---

    def compare(self, chapter: Chapter) -> list[Case]:
        """End the job, run its twin unbroken, compare each case by ==."""
        self.watch.rest.post(f"/jobs/{chapter.job_id}/cancel", {"reason": "the story is told"})
        last = max(at for _, _, at in chapter.happened)
        self.say(f"unbroken twin: the same script to step {last}, without us")
        twin = Twin(
            [*self._script(chapter.parallelism, last)],
            self.world_size,
            self.world.folder / f"twin-{chapter.parallelism}",
            self._environment(),
        ).finish(timeout_s=240.0)
        entries = self._entries()
        job = self.watch.job(chapter.job_id)
        return [
            Case(
                name=name,
                parallelism=chapter.parallelism,
                source=" + ".join(sorted({m["source"] for m in _moves(incident)})),
                pause_ms=incident["pause_ms"],
                lost_steps=incident["lost_steps"],
                world_size_before=self.world_size,
                world_size_after=len(self.watch.digests(chapter.job_id, at)),
                identical=self.watch.digests(chapter.job_id, at)
                == {rank: twin.get((rank, at)) for rank in range(job["world_size"])},
                verdict=entries.get(incident["id"], {}).get("verdict", "no entry"),
                incident_id=incident["id"],
                ledger_entry_id=entries.get(incident["id"], {}).get("id"),
            )
            for name, incident, at in chapter.happened
        ]

    def coverage(self) -> dict[str, int]:
        """Covered and qualifying failures of the demo contract's running year, as the ledger counts."""
        with closing(self.watch.auditor()) as auditor:
            years = auditor.get(f"/api/v1/contracts/{self.world.seeded.contract_id}/years").json()
        counts = years[-1]["counts"]
        return {"covered": counts["covered"], "qualifying": counts["qualifying"]}

    def _entries(self) -> dict[int, Row]:
        """incident id -> ledger entry. The entry follows its incident at once, but not in one commit."""
        found: dict[int, Row] = {}
        with closing(self.watch.auditor()) as auditor:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                path = f"/api/v1/contracts/{self.world.seeded.contract_id}/entries"
                answer = auditor.get(path).raise_for_status().json()
                found = {row["incident_id"]: row for row in answer["results"]}
                ends = self.watch.rest.get("/incidents", state="resolved")["results"]
                if all(row["id"] in found for row in ends):
                    break
                time.sleep(0.2)
        return found

    def _script(self, parallelism: str, steps: int = 1_000_000) -> list[str]:
        return [str(self._path), "--parallelism", parallelism, "--steps", str(steps)]

    def _environment(self) -> dict[str, str]:
        return {
            "YOCO_DIGEST_EVERY": str(DIGEST_EVERY),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    def _key(self, node_name: str) -> str:
        return next(key for key, node in self.world.nodes.items() if node.name == node_name)


def _rank(job: Row, rank: int) -> Row:
    """The living worker of a rank. Raises StoryFailed."""
    for worker in job["workers"]:
        if worker["rank"] == rank and worker["state"] == "running":
            found: Row = worker
            return found
    raise StoryFailed(f"rank {rank} of job {job['id']} runs nowhere")


def _moves(incident: Row) -> list[Row]:
    done = [row for row in incident["migrations"] if row["state"] == "done"]
    return [move for row in done for move in row["moves"]]
