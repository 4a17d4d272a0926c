"""A cgroup of its own for each worker, where the kernel lets the agent make one.

It catches processes that left the worker's session. Without it the session alone is walked: a process
that made a session of its own then outlives its worker (docs/agent.md).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cgroup:
    """One directory of a cgroup hierarchy."""

    path: Path

    def add(self, pid: int) -> bool:
        """Put a process in, with all it will start."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def pids(self) -> list[int]:
        try:
            return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def remove(self) -> None:
        """Succeeds once the last process is gone; what is left is left for the next start."""
        try:
            self.path.rmdir()
        except OSError:
            pass


def make(worker_id: str) -> Cgroup | None:
    """A fresh cgroup below the agent's own, None where none can be made."""
    for base in _bases():
        path = base / f"yoco-{worker_id}"
        try:
            path.mkdir(exist_ok=True)
        except OSError:
            continue
        return Cgroup(path)
    return None


def find(path: str) -> Cgroup | None:
    """A cgroup made before the agent was restarted."""
    return Cgroup(Path(path)) if path and os.path.isdir(path) else None


def _bases() -> list[Path]:
    """The agent's own cgroups: version 2 first, then version 1 hierarchies that limit nothing."""
    mounts = _mounts()
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    return [
        mounts[key] / own[key].lstrip("/")
        for key in ("", "pids", "freezer")
        if key in mounts and key in own
    ]


def _mounts() -> dict[str, Path]:
    """Controllers ("" for version 2) -> where their hierarchy is mounted."""
    mounts: dict[str, Path] = {}
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return mounts
    for line in lines:
        _device, where, kind, options, *_rest = line.split()
        if kind == "cgroup2":
            mounts[""] = Path(where)
        elif kind == "cgroup":
            for option in options.split(","):
                mounts.setdefault(option, Path(where))
    return mounts
