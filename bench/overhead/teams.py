"""A team: the ranks of one job that stand still until they are told to run a block of steps."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.protocol import Limits
from tests.engine.harness import ROOT, Coordinator, Hatchery

WORKER = Path(__file__).with_name("worker.py")
BLOCK_LIMIT_S = 300.0


class NotRunning(RuntimeError):
    """A team did not get where it should; the message has its own last words."""


@dataclass(frozen=True)
class Block:
    """Seconds a step, the mean over one block and over all ranks."""

    step_s: float
    vote_s: float
    prepare_s: float


class Team:
    """``starts`` begins the ranks and returns (logs, what to do while waiting, what ends them)."""

    def __init__(self, folder: Path, ranks: int, environment: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        self.folder, self.ranks = folder, ranks
        self.environment = {
            **environment,
            "OVERHEAD_FOLDER": str(folder),
            "OVERHEAD_WORLD": str(ranks),
            "PYTHONPATH": str(ROOT),
        }
        for rank in range(ranks):
            os.mkfifo(folder / f"go.{rank}")
        self._pipes: list[int] = []
        self._blocks = 0

    def block(self) -> Block:
        """Let every rank run one block. Raises NotRunning."""
        if not self._pipes:
            self._pipes = [self._open(rank) for rank in range(self.ranks)]
        for pipe in self._pipes:
            os.write(pipe, b"g")
        self._blocks += 1
        self.wait(lambda: all(len(self._lines(r)) >= self._blocks for r in range(self.ranks)))
        rows = [self._lines(rank)[self._blocks - 1] for rank in range(self.ranks)]

        def mean(name: str) -> float:
            return statistics.fmean(row.get(name, 0.0) for row in rows)

        return Block(mean("step_s"), mean("vote_s"), mean("prepare_s"))

    def _open(self, rank: int) -> int:
        found: list[int] = []

        def opened() -> bool:
            try:
                found.append(os.open(self.folder / f"go.{rank}", os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # nobody reads yet
                return False
            return True

        self.wait(opened)
        return found[0]

    def _lines(self, rank: int) -> list[dict[str, float]]:
        path = self.folder / f"blocks.{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + BLOCK_LIMIT_S
        while not until():
            self.turn()
            if time.monotonic() > deadline:
                raise NotRunning(f"no block within {BLOCK_LIMIT_S:.0f} s: {self.last_words()}")

    def last_words(self) -> str:
        """The last line of each rank's output that says something."""
        said = []
        for log in sorted(self.folder.glob("*.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            said.append(f"{log.stem}: {lines[-1].strip() if lines else 'nothing'}")
        return "; ".join(said)

    def turn(self) -> None:
        """Wait a little; raises NotRunning when a rank has ended."""
        raise NotImplementedError

    def close(self) -> None:
        for pipe in self._pipes:
            os.close(pipe)


class Bare(Team):
    """Ranks that nobody protects, or torchft: processes from a process with torch imported."""

    def __init__(
        self, hatchery: Hatchery, folder: Path, ranks: int, environment: dict[str, str]
    ) -> None:
        super().__init__(folder, ranks, environment)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._pidfds = []
        for rank in range(ranks):
            its = {
                **self.environment, "RANK": str(rank), "OVERHEAD_RANK": str(rank),
                "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
            pid = hatchery.start(WORKER, its, folder / f"rank{rank}.log")
            self._pidfds.append(os.pidfd_open(pid))

    def turn(self) -> None:
        ended = select.select(self._pidfds, [], [], 0.02)[0]
        if ended:
            raise NotRunning(self.last_words())

    def close(self) -> None:
        super().close()
        for pidfd in self._pidfds:
            if not select.select([pidfd], [], [], 0)[0]:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


class Ours(Team):
    """Protected ranks, with the tests' coordinator as their agent: custody and link, no platform."""

    def __init__(
        self,
        hatchery: Hatchery,
        folder: Path,
        ranks: int,
        environment: dict[str, str],
        redundancy: str,
    ) -> None:
        super().__init__(folder, ranks, environment)
        limits = Limits(stall_s=120.0, collective_s=240.0, blocked_s=240.0, join_s=120.0)
        # Ranks are told apart by the file that each of them is started as.
        self._coordinator = Coordinator(
            _Numbered(hatchery), folder, WORKER, ranks=ranks, standbys=0,
            environment=self.environment, redundancy=redundancy, limits=limits,
        )  # fmt: skip

    def turn(self) -> None:
        turns = iter((False, True))
        self._coordinator.run(lambda: next(turns), timeout_s=60.0)
        if any(worker.exited for worker in self._coordinator.workers):
            raise NotRunning(self.last_words())

    def close(self) -> None:
        super().close()
        self._coordinator.close()


class _Numbered(Hatchery):
    """Gives each worker its rank in its environment, as a launcher would."""

    def __init__(self, inner: Hatchery) -> None:
        self._inner, self._next = inner, 0

    def start(
        self,
        script: Path,
        environment: dict[str, str],
        output: Path,
        link: socket.socket | None = None,
    ) -> int:
        rank, self._next = self._next, self._next + 1
        return self._inner.start(script, {**environment, "OVERHEAD_RANK": str(rank)}, output, link)


class Lighthouse:
    """torchft's coordinator. Raises FileNotFoundError where it is not installed."""

    def __init__(self, folder: Path, ranks: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        program = Path(sys.executable).parent / "torchft_lighthouse"
        words = ["--bind", f"[::]:{port}", "--min_replicas", str(ranks)]
        words += ["--quorum_tick_ms", "100", "--join_timeout_ms", "1000"]
        with (folder / "lighthouse.log").open("wb") as log:
            self._process: subprocess.Popen[Any] = subprocess.Popen(
                [str(program), *words], stdout=log, stderr=log
            )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
