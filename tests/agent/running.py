"""A real agent process beside a real control plane, and tiny workers that need no torch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent.control import Reply, Status, StatusRequest, WorkerView, ask
from agent.protocol import LaunchOrder, Limits, StoreRef, WorkerSpec

from .control_plane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
SECRET = "secret-of-a-generation-0123456789"
USER = pwd.getpwuid(os.geteuid()).pw_name


class RunningAgent:
    """One agent process over a state directory. ``kill`` and ``start`` again make a restart."""

    def __init__(
        self,
        plane: ControlPlane,
        state_dir: Path,
        *options: str,
        name: str = "node-a",
        token: str = "one-time",
        **variables: str,
    ) -> None:
        self.plane = plane
        self.name = name
        self.token = token
        self.state_dir = state_dir
        self.options = options
        self.variables = variables
        self.process: subprocess.Popen[bytes] | None = None
        self.log = state_dir.parent / f"{state_dir.name}.log"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "agent", *words, "--state-dir", str(self.state_dir)]

    def environment(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith("YOCO_")}
        return {**keep, "PYTHONPATH": str(ROOT), "YOCO_ALLOW_ROOT": "1", **self.variables}

    def start(self, *, wait: bool = True) -> None:
        before, bells = len(self.plane.heartbeats), self.plane.bells_opened
        argv = [*self.command("run"), "--platform", self.plane.url, "--token", self.token]
        argv += ["--name", self.name, "--rack", "r1", "--failure-domain", "power-1"]
        argv += ["--bind", "127.0.0.1", "--simulate-gpus", "1"]
        argv += ["--allow-user", USER, "--allow-command", sys.executable, *self.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, env=self.environment(), cwd=ROOT, stdout=log, stderr=log
            )
        if wait:
            plane = self.plane
            plane.wait(lambda: len(plane.heartbeats) > before, "first heartbeat")
            plane.wait(lambda: plane.bells_opened > bells, "doorbell")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(10)

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """One short command of the command line against this state directory."""
        options.setdefault("cwd", ROOT)
        return subprocess.run(
            [sys.executable, "-m", "agent", *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=30,
            **options,
        )

    def status(self) -> Status:
        """What the running daemon says of itself."""
        found: list[Reply] = []

        async def keep(reply: Reply) -> None:
            found.append(reply)

        asyncio.run(ask(self.state_dir, StatusRequest(), keep))
        (status,) = found
        assert isinstance(status, Status)
        return status

    def worker(self, worker_id: str) -> WorkerView | None:
        return next((w for w in self.status().workers if w.worker_id == worker_id), None)

    def wait_status(self, holds: Callable[[Status], bool], timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds(status := self.status()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert holds(status), status

    def num_fds(self) -> int:
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self) -> None:
        """The agent and every worker that carries its mark, by pid."""
        self.kill()
        mark = f"YOCO_RECONNECT={self.state_dir}/".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


@contextlib.contextmanager
def running(
    plane: ControlPlane, state_dir: Path, *options: str, **settings: str
) -> Iterator[RunningAgent]:
    agent = RunningAgent(plane, state_dir, *options, **settings)
    try:
        agent.start()
        yield agent
    finally:
        agent.end()


def launch(script: str, *words: str, **changes: Any) -> LaunchOrder:
    """An order for one worker of a new job; ``changes`` replace fields, ``rank`` and ``worker_id`` too."""
    rank = changes.pop("rank", 0)
    worker_id = changes.pop("worker_id", None) or uuid.uuid4().hex
    port = changes.pop("store_port", 1)
    fields: dict[str, Any] = {
        "job_id": f"job-{worker_id}",
        "attempt": 1,
        "generation": 1,
        "world_size": 2,
        "command": [sys.executable, str(SCRIPTS / script), *words],
        "environment": {"PYTHONPATH": str(ROOT)},
        "working_directory": str(ROOT),
        "run_as": USER,
        "workers": [WorkerSpec(worker_id=worker_id, rank=rank, provisional_rank=rank or 0)],
        "store": StoreRef(host="127.0.0.1", port=port, prefix=f"{worker_id}/1", secret=SECRET),
        "redundancy": "auto",
        "buddies": {},
        "limits": Limits(join_s=20.0),
    }
    return LaunchOrder(**{**fields, **changes})
