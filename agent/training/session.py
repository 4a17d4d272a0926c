"""Everything a joined process has to do with its job: link, custody, groups, numbers."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

import msgspec

from ..link import (
    LINK_FD,
    STACKS_SIGNAL,
    WORKER,
    AdoptRank,
    Blocked,
    Hello,
    Interrupt,
    LinkMessage,
    Pause,
    Raised,
    Restore,
    Resume,
    WorkerStart,
)
from ..protocol import Limits, StoreRef
from ..store_client import StoreError
from ..transfer.arena import Phase
from .custody import Custody, Packet, SlotName
from .errors import GenerationOver, NothingHeard, WrittenOutside
from .listener import Listener, Verdict
from .membership import Membership, init_torch, install
from .recording import Recording
from .store import open_store
from .tallies import Tallies
from .words import say

EXCEPTION_CHARACTERS_MAX = 300
BlockedOutcome = Literal["paused", "failed", "unknown", "stalled"]


@dataclass
class Waiting:
    """What this rank is blocked on, so that a new agent can be told again."""

    outcome: BlockedOutcome
    since: float
    replica_digest: str = ""


class Session:
    """One process of a job that an agent started: a rank (``standby`` False) or a standby."""

    def __init__(self, start: WorkerStart, link: socket.socket) -> None:
        self.start = start
        self.standby = start.rank is None
        self.rank = start.provisional_rank if start.rank is None else start.rank
        self.world_size = start.world_size
        self.limits: Limits = start.limits
        self.buddies = dict(start.buddies)
        self.custody = Custody()
        self.header = self.custody.header
        self.tallies = Tallies(self.header)
        self.membership = Membership(
            self.rank, self.world_size, start.limits, start.bind_host, self.tallies
        )
        self.membership.with_bulk = start.redundancy == "buddy"
        self.latch = self.membership.latch
        self.listener = Listener(link)
        self.pause_wanted = False
        self._waiting: Waiting | None = None
        self._stall_told = False

    # --- the beginning ---

    def open(self) -> None:
        """Say hello, hand the pages over, and stand in the first generation (a standby in none)."""
        self.header.set("phase", Phase.STANDBY if self.standby else Phase.SETUP)
        listener = self.listener
        listener.on_interrupt, listener.on_pause = self._interrupted, self._pause_asked
        listener.on_kept, listener.on_watch = self.custody.kept, self._watch
        listener.on_new_agent = self._introduce
        self._introduce()
        listener.start()
        self._tell_uncaught()
        write_stacks_on_signal()
        install(self.membership)
        if self.standby:
            self.membership.sandboxed = True
            self.latch.begin(self.start.generation)
            self._hear_recording()
        else:
            self.recording = self.membership.recorded = Recording(self.rank)
            self._meet(self.start.generation, self.start.store)
        init_torch(self.membership, self.limits.collective_s)

    def _meet(self, generation: int, ref: StoreRef) -> None:
        try:
            self.membership.meet(generation, ref)
        except GenerationOver as over:
            raise ConnectionError(f"the job's generation could not be met: {over}") from over
        self.header.set("generation", generation)

    def _hear_recording(self) -> None:
        """Be set up as a rank whose set-up somebody recorded."""
        try:
            client = open_store(
                self.start.store, connect_timeout_s=self.limits.join_s,
                timeout_s=self.limits.join_s, bind_host=self.start.bind_host,
            )  # fmt: skip
            try:
                self.recording = Recording.fetch(client, self.rank, self.limits.join_s)
            finally:
                client.close()
        except StoreError as error:
            say(f"set-up answered from own values: {error}")
            return
        self.rank = self.membership.rank = self.recording.rank
        self.membership.played = self.recording

    def set_up(self) -> None:
        """``protect`` returned: end of recording, or of playing back."""
        self.membership.recorded = self.membership.played = None
        if not self.standby:
            self.publish_set_up()

    def publish_set_up(self) -> None:
        """Give the recording to the running generation's store, for standbys that start in it."""
        if self.recording is not None:
            try:
                self.recording.publish(self.membership.store.client)
            except StoreError as error:
                say(f"set-up could not be published for standbys: {error}")

    recording: Recording | None = None

    # --- talking ---

    def send(self, message: LinkMessage, fds: list[int] | None = None) -> None:
        self.listener.send(message, fds)

    def send_packets(self, packets: list[Packet]) -> None:
        for message, fds in packets:
            self.listener.send(message, fds)
        if packets:
            self.custody.sent()

    def store_slot(self, name: SlotName, rank: int, step: int, data: bytes) -> None:
        self.send_packets(self.custody.write(name, rank, step, data))

    def refuse_writes(self, names: set[str]) -> None:
        """Raise WrittenOutside when there are ``names``; nobody may take this arena then."""
        if names:
            self.header.set("unclean", 1)
            raise WrittenOutside(names)

    def _introduce(self) -> None:
        self.send(Hello(pid=os.getpid()))
        self.send_packets(self.custody.everything())
        if self._waiting is not None:
            self._tell_blocked(self._waiting)

    # --- from the listener's thread ---

    def _interrupted(self, message: Interrupt) -> None:
        over = ConnectionAbortedError(
            f"generation {message.generation} was interrupted by the agent"
        )
        self.membership.close(message.generation, over)

    def _pause_asked(self, message: Pause) -> None:
        if message.generation == self.membership.generation:
            self.pause_wanted = True

    def _watch(self) -> None:
        self.tallies.beat()
        self.membership.leave()
        silent_s = self.membership.oldest_pending_s()
        self.header.set("collective", self.membership.collectives())
        if silent_s < self.limits.stall_s or self._waiting is not None:
            self._stall_told = False
        elif not self._stall_told and self.latch.error is None:
            self._stall_told = True
            self.send(
                Blocked(generation=self.membership.generation, outcome="stalled", silent_s=silent_s)
            )

    def tell_raised(self, error: BaseException) -> None:
        """Say what the script raised: an exit code alone does not tell two failures apart."""
        if not self._raised_told and not isinstance(error, GenerationOver | SystemExit):
            self._raised_told = True
            self.send(Raised(exception=in_one_line(error)))

    _raised_told = False

    def _tell_uncaught(self) -> None:
        """What is raised outside ``run.loop`` too, once nobody has caught it."""
        shown = sys.excepthook

        def uncaught(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self.tell_raised(error)
            shown(kind, error, trace)

        sys.excepthook = uncaught

    # --- being blocked ---

    def block(self, outcome: BlockedOutcome, replica_digest: str = "") -> tuple[Verdict, list[int]]:
        """Report that this rank waits, keep everything, and wait for what comes next.

        Raises NothingHeard after ``limits.blocked_s``.
        """
        generation = self.membership.generation
        if outcome != "paused":
            self.membership.close(generation, ConnectionAbortedError("this rank's step broke"))
        self.set_phase(Phase.BLOCKED)
        self._waiting = Waiting(outcome, time.monotonic(), replica_digest)
        self._tell_blocked(self._waiting)
        try:
            while True:
                verdict, fds = self.hear(self.limits.blocked_s)
                if isinstance(verdict, Resume) and verdict.generation > generation:
                    return verdict, fds
        finally:
            self._waiting = None

    def hear(self, timeout_s: float | None) -> tuple[Verdict, list[int]]:
        """The next message for the main thread. Raises NothingHeard."""
        try:
            return self.listener.verdicts.get(timeout=timeout_s)
        except queue.Empty:
            raise NothingHeard(f"no verdict within {timeout_s:g} s") from None

    def _tell_blocked(self, waiting: Waiting) -> None:
        self.send(
            Blocked(
                generation=self.membership.generation,
                outcome=waiting.outcome,
                replica_digest=waiting.replica_digest,
            )
        )

    def set_phase(self, phase: int) -> None:
        self.header.set("phase_since_ns", time.monotonic_ns())
        self.header.set("phase", phase)

    @contextlib.contextmanager
    def within(self, phase: int) -> Iterator[None]:
        """Show ``phase`` for a while. The way out of a broken generation has set its own already."""
        before = self.header.get("phase")
        self.set_phase(phase)
        self._said += 1
        try:
            yield
        finally:
            self._said -= 1
            if self.header.get("phase") == phase:
                self.set_phase(before)

    def ran_forward(self, training: bool) -> None:
        """A protected model runs: what a script evaluates with it takes as long as it takes."""
        phase = self.header.get("phase")
        if training and phase == Phase.EVALUATING and not self._said:
            self.set_phase(Phase.FORWARD)
        elif not training and phase in (Phase.DATA, Phase.FORWARD, Phase.TAIL):
            self.set_phase(Phase.EVALUATING)

    _said = 0
    """phases that the script itself is in: nothing that is found out here ends them"""


def in_one_line(error: BaseException) -> str:
    """Type and first line of the message: the last line of its traceback, where that has one line."""
    lines = str(error).strip().splitlines()
    words = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return "".join(c for c in words if c.isprintable())[:EXCEPTION_CHARACTERS_MAX]


def write_stacks_on_signal() -> None:
    """Where the agent has no py-spy it asks for the stacks; they go to the output that it reads."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True, chain=False)


def worker_start() -> tuple[WorkerStart, socket.socket] | None:
    """What the agent told this process at birth; None when no agent started it."""
    raw, fd = os.environ.get(WORKER), os.environ.get(LINK_FD)
    if not raw or not fd:
        return None
    start = msgspec.convert(json.loads(raw), WorkerStart)
    return start, socket.socket(fileno=int(fd))


__all__ = ["AdoptRank", "Restore", "Session", "worker_start"]
