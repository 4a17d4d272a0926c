"""Ending a worker with everything it started, and knowing that it has ended.

Every wait here is on pidfds: a process that is killed makes its pidfd readable, whoever reaps it.
"""

from __future__ import annotations

import asyncio
import os
import signal

from . import machine
from .cgroups import Cgroup

ROUNDS_MAX = 50
KILL_WAIT_S = 5.0


async def exited(pidfd: int) -> None:
    """Return when the process of ``pidfd`` has ended. The descriptor stays the caller's."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        loop.remove_reader(pidfd)
        if not done.done():
            done.set_result(None)

    loop.add_reader(pidfd, readable)
    try:
        await done
    finally:
        loop.remove_reader(pidfd)


def leftovers(session: int, cgroup: Cgroup | None) -> set[int]:
    """Processes that still belong to a worker: of its cgroup, else of its session.

    The cgroup holds all of the session (``gather``) and is one small read; a walk over every process of
    the machine takes tens of milliseconds on a busy one, in the middle of a failover.
    """
    if cgroup is None:
        return set(machine.processes_of_session(session)) - {os.getpid()}
    return {pid for pid in cgroup.pids() if not machine.is_ended(pid)} - {os.getpid()}


def gather(session: int, cgroup: Cgroup) -> bool:
    """Put a process just started into its cgroup, with what it may have forked before; False when the
    kernel refuses. What it forks from now on is in it by itself."""
    if not cgroup.add(session):
        return False
    for pid in machine.processes_of_session(session):
        cgroup.add(pid)
    return True


async def kill_all(session: int, cgroup: Cgroup | None) -> int:
    """SIGKILL everything of a worker and return when all of it has ended; the number killed.

    Repeats while new ones appear: a process may fork between the look and the kill.
    """
    killed = 0
    for _ in range(ROUNDS_MAX):
        pids = leftovers(session, cgroup)
        if not pids:
            break
        killed += await _kill(_opened(session, cgroup, pids))
    if cgroup is not None:
        cgroup.remove()
    return killed


def _opened(session: int, cgroup: Cgroup | None, pids: set[int]) -> list[int]:
    """A pidfd of each process that is still the worker's once its pidfd is open: a number that was
    taken by a stranger in between is not."""
    fds: dict[int, int] = {}
    for pid in pids:
        try:
            fds[pid] = os.pidfd_open(pid)
        except OSError:
            continue
    still = leftovers(session, cgroup)
    for pid in fds.keys() - still:
        os.close(fds.pop(pid))
    return list(fds.values())


async def _kill(pidfds: list[int]) -> int:
    waits = [asyncio.ensure_future(exited(fd)) for fd in pidfds]
    try:
        for fd in pidfds:
            send(fd, signal.SIGKILL)
        if waits:
            await asyncio.wait(waits, timeout=KILL_WAIT_S)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        for fd in pidfds:
            os.close(fd)
    return len(pidfds)


def send(pidfd: int, number: int) -> None:
    """Signal the process of a pidfd; one that has ended is no error."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass
