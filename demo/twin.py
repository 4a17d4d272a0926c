"""The unbroken twin: the same script, the same ranks, no agent and no failure, in plain processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

Digest = tuple[str, str]
"""(digest of the whole state, trail head) of one rank at one step."""


class TwinFailed(RuntimeError):
    """A twin process ended with an error; the message names its log."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Twin:
    """``world_size`` plain processes of ``command``. ``finish()`` waits and returns their digests."""

    def __init__(
        self, command: list[str], world_size: int, folder: Path, environment: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        port = str(_free_port())
        self._ranks = []
        for rank in range(world_size):
            env = {
                **os.environ,
                **environment,
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "YOCO_TRAIL_FILE": str(folder / f"rank{rank}.jsonl"),
            }
            env.pop("YOCO_LINK_FD", None)
            with (folder / f"rank{rank}.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, *command], env=env, stdout=log, stderr=subprocess.STDOUT
                )
            self._ranks.append(process)

    def finish(self, timeout_s: float) -> dict[tuple[int, int], Digest]:
        """(rank, step) -> digest, for every step the twin made a digest at. Raises TwinFailed."""
        try:
            for rank, process in enumerate(self._ranks):
                if process.wait(timeout=timeout_s):
                    raise TwinFailed(f"rank {rank} ended with {process.returncode}: {self._folder}")
        finally:
            self.stop()
        digests: dict[tuple[int, int], Digest] = {}
        for rank in range(len(self._ranks)):
            for line in (self._folder / f"rank{rank}.jsonl").read_text().splitlines():
                row = json.loads(line)
                if row["kind"] == "digest":
                    digests[rank, int(row["step"])] = (row["digest"], row["head"])
        return digests

    def stop(self) -> None:
        for process in self._ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
