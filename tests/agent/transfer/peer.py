"""One side of a transfer as a process of its own, which dies by SIGKILL in the middle.

python -m tests.agent.transfer.peer source PATH      prints its port, dies at its 5th chunk
python -m tests.agent.transfer.peer target PORT SECRET   dies when 5 chunks have landed
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from agent.protocol import Endpoint
from agent.transfer.fetch import fetch
from agent.transfer.memory import Views
from agent.transfer.plan import Chunk
from agent.transfer.server import DataServer
from agent.transfer.state import SourceState, TargetState

from .arenas import Arena, Tensor
from .ways import IDENTITY

TENSORS = [Tensor("big", (40_000_000,), "uint8")]
CHUNKS_BEFORE_DEATH = 5


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStorages(dict[int, int]):
    """Every chunk looks its storage up; the process dies at one of these."""

    reads = 0

    def __getitem__(self, key: int) -> int:
        DyingStorages.reads += 1
        if DyingStorages.reads > 3 * CHUNKS_BEFORE_DEATH:
            _die()
        return super().__getitem__(key)


class DyingTarget(TargetState):
    landed = 0

    def views(self, chunk: Chunk) -> Views:
        DyingTarget.landed += 1
        if DyingTarget.landed > CHUNKS_BEFORE_DEATH:
            _die()
        return super().views(chunk)


def source(unix_path: str, secret: str) -> None:
    arena = Arena(TENSORS).fill()
    server = DataServer("127.0.0.1", unix_path=unix_path)
    server.start()
    state = SourceState(arena.manifest, DyingStorages(arena.fds))
    server.offer("dying", secret, IDENTITY, lambda: state, 60.0)
    print(server.port, flush=True)
    threading.Event().wait(60)


def target(port: int, secret: str) -> None:
    arena = Arena(TENSORS)
    endpoint = Endpoint(host="127.0.0.1", store_port=0, data_port=port)
    fetch(endpoint, "dying", secret, IDENTITY, DyingTarget(arena.manifest, arena.fds), streams=1)


if __name__ == "__main__":
    side, where, shared_secret = sys.argv[1:]
    if side == "source":
        source(where, shared_secret)
    else:
        target(int(where), shared_secret)
