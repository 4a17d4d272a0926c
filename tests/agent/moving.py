"""Two agents between which the state of tiny workers travels."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import Any

from agent.protocol import (
    Fetch,
    InterruptOrder,
    RankBlocked,
    RankExited,
    RankJoined,
    RegroupOrder,
    Serve,
    StandbyWarm,
    StoreRef,
    WorkerStarted,
)

from .control_plane import ControlPlane
from .running import SECRET, RunningAgent, launch

STREAM_SECRET = "one-time-secret-of-a-stream-" + "0" * 16


@dataclass
class Two:
    """Two agents under one control plane; each job of a test has an id of its own."""

    plane: ControlPlane
    a: RunningAgent
    b: RunningAgent
    job: str = ""

    def begin(self, job: str) -> Two:
        return Two(self.plane, self.a, self.b, job)

    def rank(self, rank: int, node: str, *words: str, worker_id: str = "") -> str:
        """Launch a rank and wait until its arena is in custody."""
        worker_id = worker_id or f"{self.job}-rank{rank}"
        order = launch("worker.py", *words, job_id=self.job, worker_id=worker_id, rank=rank)
        self.plane.order(order, node=node)
        self.plane.wait_event(RankJoined, worker_id=worker_id)
        self.kept(node, worker_id)
        return worker_id

    def standby(self, node: str, *words: str) -> str:
        worker_id = f"{self.job}-standby"
        order = launch("worker.py", *words, job_id=self.job, worker_id=worker_id, rank=None)
        self.plane.order(order, node=node)
        self.plane.wait_event(StandbyWarm, worker_id=worker_id)
        self.kept(node, worker_id)
        return worker_id

    def kept(self, node: str, worker_id: str) -> None:
        log = self.agent(node).state_dir / "logs" / f"{worker_id}.log"
        self.plane.wait(lambda: "kept" in log.read_text(), f"{worker_id} in custody")

    def agent(self, node: str) -> RunningAgent:
        return {"node-a": self.a, "node-b": self.b}[node]

    def kill(self, worker_id: str) -> RankExited:
        os.kill(self.plane.wait_event(WorkerStarted, worker_id=worker_id).pid, signal.SIGKILL)
        exited: RankExited = self.plane.wait_event(RankExited, worker_id=worker_id)
        return exited

    def interrupt(self, rank: int, node: str) -> RankBlocked:
        self.plane.order(InterruptOrder(job_id=self.job, attempt=1, generation=1), node=node)
        blocked: RankBlocked = self.plane.wait_event(RankBlocked, job_id=self.job, rank=rank)
        return blocked

    def regroup(self, node: str, resume_at: int, *roles: Any, generation: int = 2) -> str:
        port = self.plane.endpoints["node-a"].store_port
        order = RegroupOrder(
            job_id=self.job,
            attempt=1,
            from_generation=generation - 1,
            generation=generation,
            migration_id="m-1",
            resume_at=resume_at,
            store=StoreRef(
                host="127.0.0.1", port=port, prefix=f"{self.job}/{generation}", secret=SECRET
            ),
            buddies={},
            roles=list(roles),
        )
        return self.plane.order(order, node=node, expires_in_s=8.0)

    def stream(self, rank: int, holder: str, what: str, **changes: Any) -> tuple[Serve, Fetch]:
        """Both ends of a stream from node-a to node-b."""
        stream_id = f"{self.job}-{holder}-{what}"
        serve = {
            "rank": rank, "holder": holder, "what": what, "stream_id": stream_id,
            "stream_secret": STREAM_SECRET, "target_node": "node-b", **changes,
        }  # fmt: skip
        fetch = Fetch(
            node="node-a",
            holder=holder,
            endpoint=self.plane.endpoints["node-a"],
            what=what,  # type: ignore[arg-type]
            stream_id=stream_id,
            stream_secret=STREAM_SECRET,
        )
        return Serve(**serve), fetch

    def restored(self, worker_id: str) -> dict[str, Any]:
        """What the standby was given, in its own words."""
        (line,) = self.words("restored", worker_id)
        found: dict[str, Any] = json.loads(line.removeprefix("restored "))
        return found

    def words(self, first: str, worker_id: str, node: str = "node-b") -> list[str]:
        """Lines of the worker's output that begin with ``first``."""
        log = self.agent(node).state_dir / "logs" / f"{worker_id}.log"
        return [line for line in log.read_text().splitlines() if line.startswith(first)]

    def rank_of(self, worker_id: str, node: str = "node-b") -> int | None:
        """What rank the agent takes the worker for."""
        worker = self.agent(node).worker(worker_id)
        return None if worker is None else worker.rank
