"""Which machine this is, and which process is which on it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def kernel_boot_id() -> str:
    """Changes when the machine starts anew."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def host_key() -> str:
    """Equal for two agents that share one kernel and one network namespace."""
    return f"{kernel_boot_id()}/{os.readlink('/proc/self/ns/net')}"


def hostname() -> str:
    return socket.gethostname()


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third on; the name before them may hold anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot: with the pid it names a process for ever."""
    stat = _stat(pid)
    return int(stat[19]) if stat else None


def is_running(pid: int, ticks: int) -> bool:
    """Whether that very process runs still; one that waits to be reaped does not."""
    stat = _stat(pid)
    return stat is not None and int(stat[19]) == ticks and stat[0] not in "ZX"


def is_ended(pid: int) -> bool:
    """Whether there is no such process, or one that only waits to be reaped."""
    stat = _stat(pid)
    return stat is None or stat[0] in "ZX"


def processes_of_session(session: int) -> Iterator[int]:
    """Running processes of a session, without those that only wait to be reaped."""
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        stat = _stat(int(entry))
        if stat is not None and int(stat[3]) == session and stat[0] not in "ZX":
            yield int(entry)


def carries(pid: int, variable: str, value: str) -> bool:
    """Whether a process was started with this in its environment (it, or whoever started it)."""
    try:
        found = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{variable}={value}".encode() in found
