"""Runs of the job under each keeper: start, kill a rank, look at what was committed, end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.protocol import Limits
from bench.overhead.teams import Lighthouse
from tests.engine.harness import ROOT, Coordinator, Hatchery

WORKER = Path(__file__).with_name("worker.py")
TURN_S = 0.02
RESTARTS_MAX = 1000


class RunFailed(RuntimeError):
    """The job did not get on; the message has the ranks' last words."""


@dataclass(frozen=True)
class Commit:
    step: int
    at: float
    pid: int


class Run:
    """One job. ``system`` is its name in reports."""

    system = "unbroken"
    job_system = "plain"

    def __init__(
        self,
        folder: Path,
        *,
        ranks: int,
        steps: int,
        every: int = 0,
        step_ms_min: float = 0.0,
        device: str = "cpu",
    ) -> None:
        folder.mkdir(parents=True)
        self.folder, self.ranks, self.steps = folder.resolve(), ranks, steps
        self.environment = {
            "JOB_FOLDER": str(self.folder), "JOB_SYSTEM": self.job_system, "JOB_STEPS": str(steps),
            "JOB_EVERY": str(every), "JOB_STEP_MS_MIN": str(step_ms_min),
            "JOB_DEVICE": device, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.began_at = time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        port = _free_port()
        for rank in range(self.ranks):
            self._processes.append(self.spawn(rank, {"MASTER_PORT": str(port)}))

    def spawn(self, rank: int, extra: dict[str, str]) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, **self.environment, "RANK": str(rank), "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", **extra,
        }  # fmt: skip
        with (self.folder / f"rank{rank}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(WORKER)], env=environment, stdout=log, stderr=log, cwd=ROOT
            )

    def commits(self, rank: int) -> list[Commit]:
        path = self.folder / f"steps.{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [Commit(**json.loads(line)) for line in text.split("\n")[:-1]]

    def step(self) -> int:
        """The lowest of the ranks' latest steps."""
        logs = [self.commits(rank) for rank in range(self.ranks)]
        return min((log[-1].step if log else 0) for log in logs)

    def kill(self, rank: int) -> None:
        """SIGKILL of the process that is this rank now."""
        os.kill(self.commits(rank)[-1].pid, signal.SIGKILL)

    def done(self) -> bool:
        return all((self.folder / f"final.{rank}").exists() for rank in range(self.ranks))

    def finals(self) -> list[str]:
        return [(self.folder / f"final.{rank}").read_text() for rank in range(self.ranks)]

    def until(self, happened: Callable[[], bool], stall_s: float = 300.0) -> None:
        """Raises RunFailed when no rank commits anything for ``stall_s``."""
        deadline, seen = time.monotonic() + stall_s, self._written()
        while not happened():
            self.turn()
            written = self._written()
            if written != seen:
                deadline, seen = time.monotonic() + stall_s, written
            if time.monotonic() > deadline:
                raise RunFailed(f"nothing more within {stall_s:.0f} s: {self.last_words()}")

    def _written(self) -> int:
        """Bytes of all logs of commits."""
        return sum(path.stat().st_size for path in self.folder.glob("steps.*.jsonl"))

    def turn(self) -> None:
        time.sleep(TURN_S)
        codes = [process.poll() for process in self._processes]
        if any(code not in (None, 0) for code in codes) and not self.done():
            raise RunFailed(f"ranks ended with {codes}: {self.last_words()}")

    def last_words(self) -> str:
        said = []
        for log in sorted(self.folder.glob("*.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            said.append(f"{log.stem}: {lines[-1].strip()[:200] if lines else 'nothing'}")
        return "; ".join(said)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


class TorchrunRun(Run):
    """All ranks are started again from the last checkpoint by torchrun."""

    system = "torchrun-restart"

    def start(self) -> None:
        words = ["-m", "torch.distributed.run", f"--nproc-per-node={self.ranks}", "--standalone"]
        words += [f"--max-restarts={RESTARTS_MAX}", str(WORKER)]
        environment = {
            **os.environ, **self.environment,
            # With the store shared, ranks of a restart meet addresses of the attempt before it and
            # hang or fail (pytorch issue 135712): the baseline gets the setting that works.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }  # fmt: skip
        with (self.folder / "torchrun.log").open("wb") as log:
            self._processes = [
                subprocess.Popen(
                    [sys.executable, *words], env=environment, stdout=log, stderr=log, cwd=ROOT
                )
            ]


class TorchftRun(Run):
    """torchft with one rank a replica group; whoever was killed is started again at once."""

    system = "torchft"
    job_system = "torchft"

    def start(self) -> None:
        self._lighthouse = Lighthouse(self.folder, min(2, self.ranks))
        self._extra = {"TORCHFT_LIGHTHOUSE": self._lighthouse.address}
        self._processes = [self.spawn(rank, self._extra) for rank in range(self.ranks)]

    def turn(self) -> None:
        time.sleep(TURN_S)
        codes = [process.poll() for process in self._processes]
        for rank, code in enumerate(codes):
            if code == -signal.SIGKILL:
                self._processes[rank] = self.spawn(rank, self._extra)
            elif code not in (None, 0) and not self.done():
                raise RunFailed(f"ranks ended with {codes}: {self.last_words()}")

    def close(self) -> None:
        super().close()
        self._lighthouse.close()


class YocoRun(Run):
    """Our engine with the tests' coordinator as agent and planner: no platform in the path.

    One standby waits; after each recovery another one is started.
    """

    system = "yoco"
    job_system = "yoco"

    def start(self) -> None:
        self._hatchery = Hatchery()
        limits = Limits(stall_s=60.0, collective_s=120.0, blocked_s=240.0, join_s=120.0)
        self.coordinator = Coordinator(
            self._hatchery, self.folder, WORKER, ranks=self.ranks, standbys=1,
            environment=self.environment, limits=limits,
        )  # fmt: skip
        self._seen = self.coordinator.generation

    def turn(self) -> None:
        turns = iter((False, True))
        self.coordinator.run(lambda: next(turns), timeout_s=60.0)
        if self.coordinator.generation != self._seen:
            self._seen = self.coordinator.generation
            self.coordinator.spawn(None)

    def warm(self) -> bool:
        return bool(self.coordinator.warm_standbys()) and self.coordinator.ready()

    def close(self) -> None:
        self.coordinator.close()
        self._hatchery.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pause_after(commits: list[Commit], killed_at: float) -> float | None:
    """Seconds from the last commit before the kill to the first one after it; None when none came yet."""
    before = [each.at for each in commits if each.at <= killed_at]
    after = [each.at for each in commits if each.at > killed_at]
    return after[0] - before[-1] if before and after else None


def recomputed(commits: list[Commit]) -> int:
    """How many steps of this rank were committed again after they had been."""
    highest, again = 0, 0
    for each in commits:
        if each.step <= highest:
            again += 1
        highest = max(highest, each.step)
    return again


def error_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:600]
