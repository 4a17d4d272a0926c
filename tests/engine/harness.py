"""A small real coordinator: it plays the agent's side of agent/link.py for several real worker processes.

What every worker shares is held in the agent's own ``Custody``; what to do when a generation is over is
decided by the platform's own ``plan`` (deciding.py). The coordinator carries it out: it copies arenas into
standbys and sends verdicts. One thread of the test drives it; the store runs in another.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import mmap
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent import link as wire
from agent.custody import Custody
from agent.link import (
    AdoptFailed,
    AdoptRank,
    AdoptReady,
    ArenaKept,
    ArenaShared,
    Blocked,
    Committed,
    CostsMeasured,
    DigestMade,
    Finished,
    Hello,
    Interrupt,
    Joined,
    Layout,
    Pause,
    PointsMade,
    Quit,
    Regrouped,
    Restore,
    Resume,
    Warm,
    WorkerStart,
)
from agent.protocol import Limits, StoreRef
from agent.store_server import StoreServer
from agent.transfer.arena import Header
from agent.transfer.state import SourceState
from jobs.recovery import GiveUp, MovePlan, Plan, Situation, Wait, plan
from jobs.recovery.micro import kept_micro

from . import deciding

ROOT = Path(__file__).resolve().parents[2]
TWIN_S = 120.0
"""a twin that has not ended by then is ended, and fails"""


class Hatchery:
    """Starts workers by forking from a process that has torch, and ``preload``, imported."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [
                sys.executable, str(Path(__file__).with_name("hatchery.py")), str(theirs.fileno()),
                *preload,
            ],
            pass_fds=[theirs.fileno()], cwd=ROOT, env=environment,
        )  # fmt: skip
        theirs.close()
        self._socket = mine

    def start(
        self,
        script: Path,
        environment: dict[str, str],
        output: Path,
        link: socket.socket | None = None,
    ) -> int:
        request = {"script": str(script), "environment": environment, "output": str(output)}
        fds = array.array("i", [link.fileno()]) if link is not None else None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else []
        self._socket.sendmsg([json.dumps(request).encode()], rights)
        return int(self._socket.recv(64))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(10)


class StoreThread:
    """The agents' store server on an event loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.server = StoreServer("127.0.0.1")
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(10)

    def open(self) -> StoreRef:
        ref = StoreRef(
            host="127.0.0.1",
            port=self.server.port,
            prefix=f"p-{uuid.uuid4().hex}",
            secret=uuid.uuid4().hex,
        )
        self._call(lambda: self.server.open_prefix(ref.prefix, ref.secret))
        return ref

    def shut(self, ref: StoreRef) -> None:
        self._call(lambda: self.server.close_prefix(ref.prefix))

    def num_keys(self) -> int:
        """Keys of all generations that are still open."""
        return sum(len(space.values) for space in list(self.server._spaces.values()))

    def num_prefixes(self) -> int:
        return len(self.server.prefixes)

    def _call(self, act: Callable[[], None]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (act(), done.set()))
        assert done.wait(10)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@dataclass(eq=False)
class Worker:
    """One process and what is held for it."""

    worker_id: str
    rank: int | None
    pid: int
    pidfd: int
    link: socket.socket
    output: Path
    generation: int
    node: int
    provisional_rank: int
    custody: Custody = field(default_factory=Custody)
    fingerprint: str = ""
    replica_group: frozenset[int] = frozenset()
    left_at: int | None = None
    """the step that the generation after its own went on from, once its rank has moved on"""
    warm: bool = False
    joined: Joined | None = None
    blocked: Blocked | None = None
    blocked_at: float = 0.0
    paused_digest: str = ""
    exited: bool = False
    exited_at: float = 0.0
    finished: Finished | None = None
    adopting: AdoptRank | None = None
    ready: AdoptReady | None = None
    committed: list[Committed] = field(default_factory=list)
    digests: dict[int, DigestMade] = field(default_factory=dict)
    points: list[Any] = field(default_factory=list)
    costs: list[dict[str, float]] = field(default_factory=list)
    hellos: int = 0

    @property
    def header(self) -> Header | None:
        return self.custody.header

    @property
    def log(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


class Failed(AssertionError):
    pass


def _bound(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    return listening


class Coordinator:
    """``ranks`` workers and ``standbys``; ``run`` until a condition holds."""

    def __init__(
        self, hatchery: Hatchery, folder: Path, script: Path, *, ranks: int, standbys: int = 1,
        environment: dict[str, str] | None = None, redundancy: str = "auto", limits: Limits | None = None,
        accumulation: str = "redo", provisional: int = 0, buddies: bool = True, bind_host: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        self.hatchery, self.folder, self.script = hatchery, folder, script
        self.num_ranks, self.provisional, self.bind_host = ranks, provisional, bind_host
        self.environment = dict(environment or {})
        self.redundancy, self.accumulation = redundancy, accumulation
        self.limits = limits or Limits(stall_s=2.0, collective_s=20.0, blocked_s=30.0, join_s=20.0)
        self.with_buddies = buddies
        self.store = StoreThread()
        self.generation = 0
        self.ref = self.store.open()
        self.selector = selectors.DefaultSelector()
        self.workers: list[Worker] = []
        self.ranks: dict[int, Worker] = {}
        self.custody_lost: set[int] = set()
        """pids whose custody is gone with their node, once they have ended"""
        self.lost_nodes: set[tuple[int, int]] = set()
        """(generation, rank) whose end is that of its node"""
        self.pausing: int | None = None
        self.regrouping = False
        """a new generation is wanted though nobody is lost"""
        self.on_turn: Callable[[], None] = lambda: None
        self.moved: list[tuple[int, str, str]] = []
        """(rank, source, finish) of every move whose target was filled"""
        self.decisions: list[tuple[Situation, Plan]] = []
        self.waiting_for = ""
        self._moves: dict[int, MovePlan] = {}
        self.pauses_ms: list[float] = []
        self.on_message: Callable[[Worker, Any], None] = lambda _worker, _message: None
        self.resume_at, self.resume_micro = -1, 0
        self.file = folder / "trail.jsonl"
        self.listening = _bound(folder / "agent.sock")
        self.holders: dict[int, list[Worker]] = {}
        """rank -> who may hold its state, the latest last"""
        self._spawn_all(ranks, standbys)

    # --- processes ---

    def _spawn_all(self, ranks: int, standbys: int) -> None:
        for rank in range(ranks):
            self.ranks[rank] = self.spawn(rank)
            self.holders[rank] = [self.ranks[rank]]
        for _ in range(standbys):
            self.spawn(None)

    def ring(self) -> dict[str, str]:
        if not self.with_buddies:
            return {}
        return {str(r): str((r + 1) % self.num_ranks) for r in range(self.num_ranks)}

    def spawn(self, rank: int | None) -> Worker:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        provisional = self.provisional if rank is None else rank
        worker_id = uuid.uuid4().hex
        start = WorkerStart(
            worker_id=worker_id, job_id="job", attempt=1, generation=self.generation, rank=rank,
            provisional_rank=provisional, world_size=self.num_ranks,
            store=self.ref, redundancy=self.redundancy, buddies=self.ring(), limits=self.limits,
            accumulation=self.accumulation,
            bind_host=self.bind_host,
        )  # fmt: skip
        name = f"rank{rank}" if rank is not None else f"standby{len(self.workers)}"
        output = self.folder / f"{name}-{len(self.workers)}.log"
        environment = {
            **self.environment, "YOCO_WORKER": wire._encoder.encode(start).decode(),
            "YOCO_TRAIL_FILE": str(self.file), "JOB_GATE": str(self.folder / "gate"),
            "YOCO_RECONNECT": str(self.folder / "agent.sock"),
        }  # fmt: skip
        pid = self.hatchery.start(self.script, environment, output, theirs)
        theirs.close()
        worker = Worker(
            worker_id, rank, pid, os.pidfd_open(pid), mine, output, self.generation,
            node=len(self.workers), provisional_rank=provisional,
        )  # fmt: skip
        self.workers.append(worker)
        self.selector.register(mine, selectors.EVENT_READ, (worker, "link"))
        self.selector.register(worker.pidfd, selectors.EVENT_READ, (worker, "exit"))
        return worker

    def close(self) -> None:
        for worker in self.workers:
            self._signal(worker, signal.SIGKILL)
        for worker in self.workers:
            if not worker.exited:
                _readable(worker.pidfd, 10.0)
            os.close(worker.pidfd)
            worker.link.close()
            worker.custody.close()
        self.selector.close()
        self.listening.close()
        self.store.close()

    def restart_agent(self) -> None:
        """Every link ends, all that was held is let go, and a new agent listens for the workers."""
        for worker in self.workers:
            with contextlib.suppress(KeyError):
                self.selector.unregister(worker.link)
            worker.link.close()
            worker.custody.close()
            worker.custody = Custody()
            worker.custody.lost = True
        self.listening.listen(16)
        self.selector.register(self.listening, selectors.EVENT_READ, (None, "accept"))

    def _accept(self) -> None:
        link, _address = self.listening.accept()
        heard = wire.receive_from_worker(link)
        assert heard is not None
        hello = heard[0]
        assert isinstance(hello, Hello)
        (worker,) = [worker for worker in self.workers if worker.pid == hello.pid]
        worker.link = link
        worker.hellos += 1
        self.selector.register(link, selectors.EVENT_READ, (worker, "link"))

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        self._signal(self.ranks[rank], number)

    @staticmethod
    def _signal(worker: Worker, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.pidfd, number)

    def lose_node(self, rank: int) -> None:
        """The rank dies and nothing of its custody can be reached."""
        self.custody_lost.add(self.ranks[rank].pid)
        self.kill(rank)

    # --- the loop ---

    def run(self, until: Callable[[], bool], timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline:
                raise Failed(f"timed out; {self.waiting_for}\n" + self.describe())
            for key, _events in self.selector.select(0.01):
                worker, kind = key.data
                if worker is None:
                    self._accept()
                    continue
                self._drain(worker)
                if kind == "exit":
                    self._exited(worker)
            self._advance()
            self.on_turn()

    def describe(self) -> str:
        for worker in self.workers:
            self._signal(worker, signal.SIGUSR1)  # its stacks go to its log
        time.sleep(0.3)
        lines = []
        for worker in self.workers:
            position = worker.header.position() if worker.header else None
            phase = worker.header.get("phase") if worker.header else None
            lines.append(
                f"rank {worker.rank} pid {worker.pid} exited {worker.exited} warm {worker.warm} blocked "
                f"{worker.blocked} phase {phase} {position}\n{worker.log[-3000:]}"
            )
        return "\n".join(lines)

    def ready(self) -> bool:
        """Every standby is warm and the custody of every rank is usable."""
        standbys = [worker for worker in self.workers if worker.rank is None]
        ranks = self.ranks.values()
        return all(w.warm for w in standbys) and all(w.custody.state == "usable" for w in ranks)

    def open_gate(self) -> None:
        """Let the ranks go on once everything is protected."""
        self.run(self.ready)
        (self.folder / "gate").touch()

    def finished(self) -> bool:
        return all(worker.finished is not None for worker in self.ranks.values())

    def step(self) -> int:
        """The lowest committed step of all ranks."""
        return min((w.header.get("applied") if w.header else -1) for w in self.ranks.values())

    def warm_standbys(self) -> list[Worker]:
        return [w for w in self.workers if w.rank is None and w.warm and not w.exited]

    def is_lost(self, worker: Worker) -> bool:
        """Whether nobody hears the worker's node any more."""
        return worker.exited and worker.pid in self.custody_lost

    # --- messages ---

    def _drain(self, worker: Worker) -> None:
        while (
            not worker.exited and worker.link.fileno() >= 0 and _readable(worker.link.fileno(), 0.0)
        ):
            try:
                heard = wire.receive_from_worker(worker.link)
            except OSError:
                heard = None
            if heard is None:
                if self.selector.get_map().get(worker.link.fileno()):
                    self.selector.unregister(worker.link)
                return
            self._take(worker, *heard)

    def _take(self, worker: Worker, message: Any, fds: list[int]) -> None:
        if isinstance(message, Layout):
            worker.custody.take_layout(fds)
        elif isinstance(message, ArenaShared):
            if worker.custody.take_part(message, fds):
                self._send(worker, ArenaKept(which=message.which, epoch=message.epoch))
        elif isinstance(message, Hello):
            worker.hellos += 1
        elif isinstance(message, Joined):
            worker.joined, worker.fingerprint = message, message.fingerprint
            worker.replica_group = frozenset(message.replica_group)
        elif isinstance(message, Warm):
            worker.warm, worker.fingerprint = True, message.fingerprint
        elif isinstance(message, Blocked):
            worker.blocked, worker.blocked_at = message, time.monotonic()
            worker.paused_digest = message.replica_digest
        elif isinstance(message, AdoptReady):
            worker.ready = message
        elif isinstance(message, AdoptFailed):
            raise Failed(f"adoption failed: {message}\n{worker.log}")
        elif isinstance(message, Regrouped):
            worker.generation = message.generation
        elif isinstance(message, Committed):
            worker.committed.append(message)
            if message.pause_ms is not None:
                self.pauses_ms.append(message.pause_ms)
            self._release()
        elif isinstance(message, DigestMade):
            worker.digests[message.step] = message
        elif isinstance(message, Finished):
            worker.finished = message
        elif isinstance(message, PointsMade):
            worker.points += message.points
        elif isinstance(message, CostsMeasured):
            worker.costs.append(message.costs)
        self.on_message(worker, message)

    def _send(self, worker: Worker, message: Any, fds: list[int] | None = None) -> None:
        try:
            wire.send(worker.link, message, fds)
        except OSError:
            pass  # it died: its exit tells

    def _exited(self, worker: Worker) -> None:
        worker.exited, worker.exited_at = True, time.monotonic()
        self.selector.unregister(worker.pidfd)
        rank = worker.rank
        if rank is not None and (self.generation, rank) in self.lost_nodes:
            self.custody_lost.add(worker.pid)
        if rank is None or self.ranks.get(rank) is not worker or worker.finished is not None:
            return
        self.interrupt()

    def interrupt(self) -> None:
        """The generation is over. A target whose memory is not filled yet is ended, as the platform does."""
        for other in self.ranks.values():
            if not other.exited:
                self._send(other, Interrupt(generation=self.generation))
            if other.adopting is not None:
                self._signal(other, signal.SIGKILL)

    # --- decisions ---

    def move(self, rank: int) -> None:
        """A planned move of a live rank."""
        self.pausing = rank
        for worker in self.ranks.values():
            self._send(worker, Pause(generation=self.generation))

    def _advance(self) -> None:
        for worker in self.workers:
            if worker.adopting is not None and worker.ready is not None and not worker.exited:
                self._fill(worker)
        unfinished = [worker for worker in self.ranks.values() if not worker.finished]
        over = any(worker.exited for worker in unfinished)
        over = over or self.pausing is not None or self.regrouping
        if not over or not all(worker.exited or self.waits(worker) for worker in unfinished):
            return
        situation = deciding.situation_of(self)
        decision = plan(situation)
        if isinstance(decision, GiveUp):
            raise Failed(f"given up: {decision}\n" + self.describe())
        if isinstance(decision, Wait):
            self.waiting_for = decision.reason
            return
        self.waiting_for = ""
        self.decisions.append((situation, decision))
        self._regroup(decision)

    def waits(self, worker: Worker) -> bool:
        """Whether it has stopped in the present generation and keeps everything."""
        blocked = worker.blocked
        return (
            blocked is not None
            and blocked.generation == self.generation
            and blocked.outcome != "stalled"
        )

    @property
    def kept(self) -> dict[int, set[int]]:
        """Rank -> the micro-batches of the torn step that it had kept when it was last decided."""
        situation, decision = self.decisions[-1]
        return {m.rank: set(kept_micro(m.position, decision.resume_at)) for m in situation.members}

    def _regroup(self, decision: Plan) -> None:
        old_ref, self.ref = self.ref, self.store.open()
        self.generation += 1
        step = self.resume_at = decision.resume_at
        self.resume_micro = decision.resume_micro
        by_id = {worker.worker_id: worker for worker in self.workers}
        for move in decision.moves:
            left, standby = by_id[move.from_worker], by_id[move.to_worker]
            left.left_at = step
            standby.rank, standby.replica_group = move.rank, left.replica_group
            standby.generation, standby.ready = self.generation, None
            self.ranks[move.rank] = standby
            self.holders[move.rank].append(standby)
            self._moves[move.rank] = move
            standby.adopting = AdoptRank(
                rank=move.rank, generation=self.generation, resume_at=step, finish=move.finish,
                store=self.ref, buddies=self.ring(), resume_micro=self.resume_micro, drawn=move.drawn,
                drawn_hash=move.drawn_hash, finish_micro=move.finish_micro,
            )  # fmt: skip
            self._send(standby, standby.adopting)
        for rank, worker_id in decision.stay.items():
            worker = self.ranks[rank] = by_id[worker_id]
            worker.blocked, worker.left_at = None, None
            worker.generation = self.generation
            self._send(
                worker,
                Resume(
                    generation=self.generation, resume_at=step, store=self.ref, buddies=self.ring(),
                    resume_micro=self.resume_micro,
                ),
            )  # fmt: skip
        self.pausing, self.regrouping = None, False
        self.store.shut(old_ref)

    def _fill(self, standby: Worker) -> None:
        """Bring every stream of the move in, once its source is at rest."""
        order = standby.adopting
        assert order is not None
        move = self._moves[order.rank]
        states = deciding.served(self, move, order.resume_at, order.resume_micro)
        if states is None:
            return
        blobs: dict[Any, tuple[int, bytes]] = {}
        for state in states:
            if state.manifest.tensors:
                copy_arena(state, standby.custody)
            blobs |= state.blobs
            state.release()
        names = [name for name in ("small", "fence", "prepared", "micro") if name in blobs]
        fds = [_paper(blobs[name][1]) for name in names]
        steps = [blobs[name][0] for name in names]
        self._send(
            standby,
            Restore(rank=order.rank, generation=order.generation, blobs=names, steps=steps), fds,
        )  # fmt: skip
        for fd in fds:
            os.close(fd)
        standby.adopting = None
        self.moved.append((order.rank, move.source, move.finish))

    def _release(self) -> None:
        """Every rank has committed in this generation: let go of what was kept from before."""
        ranks = list(self.ranks.values())
        if not all(w.committed and w.committed[-1].generation == self.generation for w in ranks):
            return
        for rank, holders in self.holders.items():
            for worker in holders:
                if worker is self.ranks[rank]:
                    continue
                if not worker.exited:
                    self._send(worker, Quit(reason="moved"))
                worker.custody.close()
            self.holders[rank] = [self.ranks[rank]]


def _readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()  # select() knows no descriptor beyond 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def copy_arena(source: SourceState, custody: Custody) -> None:
    """Tensor by tensor, by name."""
    target = custody.arena("live")
    assert target is not None, "the standby has shared no memory"
    theirs = {tensor.name: tensor for tensor in source.manifest.tensors}
    assert set(theirs) == {t.name for t in target.manifest.tensors}, "the arenas hold other tensors"
    for tensor in target.manifest.tensors:
        peer = theirs[tensor.name]
        assert (tensor.shape, tensor.dtype, tensor.strides) == (
            peer.shape,
            peer.dtype,
            peer.strides,
        )
        size = _span(tensor)
        if size == 0:
            continue
        read = mmap.mmap(source.storages[peer.storage_id], 0)
        write = mmap.mmap(target.fds[tensor.storage_id], 0)
        write[tensor.offset_bytes : tensor.offset_bytes + size] = read[
            peer.offset_bytes : peer.offset_bytes + size
        ]
        read.close()
        write.close()


def _span(tensor: Any) -> int:
    from agent.transfer.manifest import span_bytes

    return span_bytes(tensor.shape, tensor.strides, tensor.dtype)


def _paper(data: bytes) -> int:
    fd = os.memfd_create("blob")
    os.write(fd, data)
    return fd


# --- comparing with an unbroken twin ---------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """What the ranks wrote: (rank, step) -> digest, and (rank, step) -> (head, loss, batch)."""

    digests: dict[tuple[int, int], tuple[str, str, str]]
    commits: dict[tuple[int, int], tuple[str, Any, str]]


def read_story(path: Path) -> Story:
    digests: dict[tuple[int, int], tuple[str, str, str]] = {}
    commits: dict[tuple[int, int], tuple[str, Any, str]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        key = (entry["rank"], entry["step"])
        if entry["kind"] == "digest":
            digests[key] = (entry["digest"], entry["replica"], entry["head"])
        else:
            commits[key] = (entry["head"], entry["loss"], entry["batch"])
    return Story(digests, commits)


def run_twin(
    hatchery: Hatchery, folder: Path, script: Path, *, ranks: int, environment: dict[str, str]
) -> Story:
    """The same script on plain gloo, without an agent."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    trail = folder / "trail.jsonl"
    pidfds = []
    for rank in range(ranks):
        its = {
            **environment, "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "YOCO_TRAIL_FILE": str(trail),
            "HATCHERY_CODE_FILE": str(folder / f"twin{rank}.code"),
        }  # fmt: skip
        pidfds.append(os.pidfd_open(hatchery.start(script, its, folder / f"twin{rank}.log")))
    deadline = time.monotonic() + TWIN_S
    for pidfd in pidfds:
        if not _readable(pidfd, max(deadline - time.monotonic(), 0)):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
    logs = "\n".join(p.read_text()[-2000:] for p in sorted(folder.glob("twin*.log")))
    codes = [folder / f"twin{rank}.code" for rank in range(ranks)]
    # A process that was ended, by a signal or at the deadline, writes none.
    told = [path.read_text() if path.exists() else "none" for path in codes]
    assert told == ["0"] * ranks, f"exit codes {told}\n{logs}"
    return read_story(trail)
