"""``JOB_SLOW_LINK`` = rank:rank:step: what the two send each other in that step's first large all-gather
takes many seconds. GATE.half-RANK says that this rank has received a part of it: an operation of gloo whose
connection ends now is told nothing."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch

GATE = os.environ.get("JOB_GATE", "")
RANKS = [int(part) for part in os.environ.get("JOB_SLOW_LINK", "").split(":") if part]
LARGE_BYTES, PART_BYTES = 1 << 20, 4096
BYTES_PER_S = 1 << 16
_SO_MAX_PACING_RATE = 47
_BYTES_RECEIVED = 128
"""where it stands in the kernel's struct tcp_info"""


def slow_down(run: Any) -> None:
    """Take part in it, if this process of a job is told to."""
    if run._session is None or not RANKS:
        return
    from agent.training import leaving
    from agent.training.group import YocoProcessGroup

    if os.environ.get("JOB_NEVER_LEAVES"):
        leaving.LEAVE_S = 3600.0
    carry, slowed = YocoProcessGroup.carry, []

    def watched(group: Any, name: str, arguments: Any, keywords: Any) -> Any:
        membership = run._session.membership
        here = [*sorted(group.ranks), run.step + 1, membership.generation, membership.sandboxed]
        if here == [*RANKS, 0, False] and not slowed and _large(arguments):
            slowed.append(name)
            fds = list(group._inner.sockets)
            slow(fds)
            threading.Thread(target=_tell, args=(run.rank, fds), daemon=True).start()
        return carry(group, name, arguments, keywords)

    YocoProcessGroup.carry = watched  # type: ignore[method-assign]


def slow(fds: Iterable[int]) -> None:
    """Let these sockets send BYTES_PER_S and no more."""
    for fd in fds:
        _of(fd, lambda end: end.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, BYTES_PER_S))


def half_received() -> list[str]:
    """The files that say so."""
    return [f"{GATE}.half-{rank}" for rank in RANKS[:2]]


def _tell(rank: int, fds: list[int]) -> None:
    before = received_bytes(fds)
    while received_bytes(fds) < before + PART_BYTES:
        time.sleep(0.001)
    with open(f"{GATE}.half-{rank}", "w"):
        pass


def _large(arguments: Any) -> bool:
    first = arguments[0] if arguments else None
    return isinstance(first, torch.Tensor) and first.nbytes >= LARGE_BYTES


def received_bytes(fds: Iterable[int]) -> int:
    return sum(
        _of(fd, lambda end: struct.unpack_from("Q", _info(end), _BYTES_RECEIVED)[0]) for fd in fds
    )


def _info(end: socket.socket) -> bytes:
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)


def _of(fd: int, ask: Any) -> Any:
    with socket.socket(fileno=os.dup(fd)) as end:
        return ask(end)
