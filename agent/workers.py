"""Worker processes: started, heard, ended, found again after a restart of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from . import cgroups, machine, sessions
from .custody import Custody
from .errors import StartFailed
from .launch import User
from .link import LINK_FD, RECONNECT, AdoptFailed, Blocked, FromAgent, FromWorker, Quit
from .links import OnMessage, ReconnectListener, WorkerLink
from .records import Records, WorkerRecord
from .states import WorkerState, may_step
from .worker_logs import LOOK_S, LogKeeper, tail

_log = structlog.get_logger("yoco.workers")
DETAIL_CHARACTERS_MAX = 500
_TAIL_BYTES = 8192
LINK_SOCKET = "link.sock"


@dataclass(frozen=True)
class Ending:
    """How a process ended. Both None: the agent was restarted meanwhile and is not its parent."""

    exit_code: int | None = None
    signal: int | None = None


class Worker:
    """One process. ``until`` waits for what its messages and its end bring about."""

    def __init__(self, record: WorkerRecord, pidfd: int, records: Records) -> None:
        self.record = record
        self.pidfd = pidfd
        self.custody = Custody()
        self.link: WorkerLink | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.cgroup = cgroups.find(record.cgroup)
        self.blocked: Blocked | None = None
        self.adopt_ready = -1
        """rank the standby has taken the shapes of"""
        self.adopt_failed: AdoptFailed | None = None
        self.regrouped = -1
        """last generation it reported to stand in"""
        self.interrupted = -1
        """last generation it was told to stop in"""
        self.ending: Ending | None = None
        self.join_timer: asyncio.TimerHandle | None = None
        self.filling: asyncio.Task[Any] | None = None
        """streams that write into its memory; Any: what they report is adoption's affair"""
        self.discard = False
        """it was told to end: nothing of it is kept"""
        self.detail = ""
        """why it was ended, when the agent did it"""
        self.exception = ""
        """what its script raised and did not catch"""
        self.stood_s = 0.0
        self.stacks = ""
        """of one that was ended because it hung"""
        self._records = records
        self._changed = asyncio.Event()

    @property
    def alive(self) -> bool:
        return self.ending is None

    def step(self, state: WorkerState) -> None:
        """Go to ``state``; a step that is not in the table is logged and not taken."""
        if not may_step(self.record.state, state):
            _log.warning("step_refused", worker=self.record.worker_id, to=state)
            return
        self.record.state = state
        self.save()

    def save(self) -> None:
        """Keep the record for the next start of the agent, and wake whoever waits in ``until``."""
        if self.alive:
            self._records.save_worker(self.record)
        self.notify()

    def note_interrupt(self, generation: int) -> None:
        self.interrupted = generation
        self.notify()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[Worker], bool], timeout_s: float) -> bool:
        """True as soon as ``holds``; False when the time is over or the process has ended first."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds(self):
                    if not self.alive:
                        return False
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def say(self, message: FromAgent, fds: list[int] | None = None) -> bool:
        """Send over the link; False when there is none (``fds`` are closed)."""
        if self.link is None or not self.link.open:
            for fd in fds or []:
                os.close(fd)
            return False
        self.link.send(message, fds)
        return True

    def reap(self) -> Ending:
        """How the process, which has ended, did so."""
        if self.process is None:
            return Ending()
        code = self.process.wait()
        return Ending(exit_code=code) if code >= 0 else Ending(signal=-code)

    def last_line(self) -> str:
        """The last line of its own output that is not empty, as text that any database takes."""
        try:
            lines = tail(Path(self.record.log), _TAIL_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return ""
        found = (_plain(line) for line in reversed(lines))
        return next(filter(None, found), "")[:DETAIL_CHARACTERS_MAX]


def _plain(line: str) -> str:
    """Without control characters: a script may print anything, a NUL cannot be stored everywhere."""
    kept = (c if c.isprintable() else " " if c.isspace() else "" for c in line)
    return "".join(kept).strip()


Heard = Callable[[Worker, FromWorker, list[int]], None]


class Workers:
    """All workers of this node, dead ones in custody included.

    ``on_message`` and ``on_exit`` are called in the event loop, ``on_exit`` once, when everything of the
    worker has ended.
    """

    def __init__(self, state_dir: Path, records: Records) -> None:
        self.on_message: Heard = lambda worker, message, fds: None
        self.on_exit: Callable[[Worker], None] = lambda worker: None
        self.reconnect_path = state_dir / LINK_SOCKET
        self._logs = state_dir / "logs"
        self._records = records
        self._all: dict[str, Worker] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._listener: ReconnectListener | None = None

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._all.values()))

    def get(self, worker_id: str) -> Worker | None:
        return self._all.get(worker_id)

    def open(self) -> list[Worker]:
        """Listen for workers of an earlier run and take them up; those that ended meanwhile are
        returned: their exit is to be told."""
        self._logs.mkdir(mode=0o700, exist_ok=True)
        self._listener = ReconnectListener(self.reconnect_path, self._reconnected)
        ended = []
        for record in self._records.workers():
            worker = self._found_again(record)
            if worker is None:
                ended.append(self._found_dead(record))
                self._kill_remains(record)
        return ended

    def start(
        self,
        record: WorkerRecord,
        *,
        environment: dict[str, str],
        working_directory: str,
        user: User,
    ) -> Worker:
        """Start a process and watch it. Fills pid, times and paths of ``record``. Raises StartFailed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = self._logs / f"{record.worker_id}.log"
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    record.command,
                    cwd=working_directory,
                    env={**environment, LINK_FD: str(theirs.fileno())},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    user=user.uid if user.switch else None,
                    group=user.gid if user.switch else None,
                    extra_groups=os.getgrouplist(user.name, user.gid) if user.switch else None,
                )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            ours.close()
            raise StartFailed(f"{record.command[0]}: {error}") from error
        finally:
            theirs.close()
        group = cgroups.make(record.worker_id)
        if group is not None and not sessions.gather(process.pid, group):
            group.remove()
            group = None
        record.pid, record.log, record.started_at = process.pid, str(log), time.time()
        record.start_ticks = machine.start_ticks(process.pid) or 0
        record.kernel_boot_id = machine.kernel_boot_id()
        record.cgroup = str(group.path) if group else ""
        worker = Worker(record, os.pidfd_open(process.pid), self._records)
        worker.process = process
        worker.link = WorkerLink(ours, self._handler(worker))
        self._all[record.worker_id] = worker
        worker.save()
        self._watch(worker)
        return worker

    async def keep_logs(self, bytes_max: int) -> None:
        """Hold the log of each worker below ``bytes_max`` for as long as the agent runs."""
        keeper = LogKeeper(bytes_max)
        while True:
            await keeper.look(Path(worker.record.log) for worker in self)
            await asyncio.sleep(LOOK_S)

    async def quit(self, worker: Worker, reason: str, grace_s: float) -> None:
        """Ask a worker to end and end it: returns when it has ended."""
        said = worker.say(Quit(reason=reason))
        if said and await worker.until(lambda w: not w.alive, grace_s):
            return
        await self.end(worker)

    async def end(self, worker: Worker) -> None:
        """End a worker at once, wherever it stands: its custody says where. Returns when it has ended."""
        self.kill(worker)
        await worker.until(lambda w: not w.alive, sessions.KILL_WAIT_S * 2)

    def kill(self, worker: Worker) -> None:
        if worker.alive:
            sessions.send(worker.pidfd, signal.SIGKILL)

    def forget(self, worker: Worker) -> None:
        """Let go of a worker that has ended, with all that is held of it."""
        worker.custody.close()
        self._all.pop(worker.record.worker_id, None)

    async def close(self) -> None:
        """Stop listening and watching. The processes go on: the next run finds them."""
        for task in list(self._watches):
            task.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        for worker in list(self._all.values()):
            if worker.link is not None:
                worker.link.close()
            if worker.alive:
                os.close(worker.pidfd)
            worker.custody.close()

    def _found_again(self, record: WorkerRecord) -> Worker | None:
        if record.kernel_boot_id != machine.kernel_boot_id():
            return None
        try:
            pidfd = os.pidfd_open(record.pid)
        except OSError:
            return None
        # The pidfd is open before the start time is read: a number reused since is found out.
        if not machine.is_running(record.pid, record.start_ticks):
            os.close(pidfd)
            return None
        worker = Worker(record, pidfd, self._records)
        worker.custody.lost = record.joined
        self._all[record.worker_id] = worker
        self._watch(worker)
        return worker

    def _found_dead(self, record: WorkerRecord) -> Worker:
        worker = Worker(record, -1, self._records)
        worker.custody.lost = record.joined
        worker.ending = Ending()
        worker.detail = "it ended while the agent was away"
        record.state = WorkerState.EXITED
        self._all[record.worker_id] = worker
        self._records.forget_worker(record.worker_id)
        return worker

    def _kill_remains(self, record: WorkerRecord) -> None:
        """End what a worker left that ended unseen. Its session's number may be a stranger's by now,
        so what has not our mark is let be."""
        if record.kernel_boot_id != machine.kernel_boot_id():
            return
        cgroup = cgroups.find(record.cgroup)
        for pid in sessions.leftovers(record.pid, cgroup):
            if machine.carries(pid, RECONNECT, str(self.reconnect_path)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if cgroup is not None:
            cgroup.remove()

    def _handler(self, worker: Worker) -> OnMessage:
        return lambda message, fds: self.on_message(worker, message, fds)

    def _reconnected(self, end: socket.socket, pid: int) -> None:
        worker = next((w for w in self if w.alive and w.record.pid == pid), None)
        if worker is None or not machine.is_running(pid, worker.record.start_ticks):
            _log.warning("stranger_on_link", pid=pid)
            end.close()
            return
        if worker.link is not None:
            worker.link.close()
        worker.link = WorkerLink(end, self._handler(worker))

    def _watch(self, worker: Worker) -> None:
        task = asyncio.create_task(self._watched(worker))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _watched(self, worker: Worker) -> None:
        await sessions.exited(worker.pidfd)
        ending = worker.reap()
        # Before anybody hears of it: a forked loader that lives on would keep the rank's sockets open.
        await sessions.kill_all(worker.record.pid, worker.cgroup)
        if worker.link is not None:
            worker.link.drain()
            worker.link.close()
        if worker.join_timer is not None:
            worker.join_timer.cancel()
        os.close(worker.pidfd)
        self._records.forget_worker(worker.record.worker_id)
        worker.ending = ending
        worker.step(WorkerState.EXITED)
        self.on_exit(worker)
