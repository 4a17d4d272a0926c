"""The thread that hears the agent while the main thread trains, waits in a collective or is blocked."""

from __future__ import annotations

import collections
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable

import msgspec

from .. import link as wire
from ..link import (
    AdoptRank,
    ArenaKept,
    Interrupt,
    LinkMessage,
    Pause,
    PointsMade,
    Quit,
    Restore,
    Resume,
)
from .words import say

_RETRY_S = 0.25
Verdict = Resume | AdoptRank | Restore
_WATCH_S = 0.5
_UNSENT_MAX = 1000


class Listener(threading.Thread):
    """Owns the link. Messages that only the main thread can act on wait in ``verdicts``."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(name="yoco-listener", daemon=True)
        self.verdicts: queue.SimpleQueue[tuple[Verdict, list[int]]] = queue.SimpleQueue()
        self.on_interrupt: Callable[[Interrupt], None] = _nothing
        self.on_pause: Callable[[Pause], None] = _nothing
        self.on_kept: Callable[[ArenaKept], None] = _nothing
        self.on_watch: Callable[[], None] = lambda: None
        self.on_new_agent: Callable[[], None] = lambda: None
        self._link: socket.socket | None = link
        self._sending = threading.RLock()
        self._unsent: collections.deque[LinkMessage] = collections.deque(maxlen=_UNSENT_MAX)
        link.settimeout(None)

    def send(self, message: LinkMessage, fds: list[int] | None = None) -> bool:
        """Send one packet; False when the agent is away (what matters is sent again to the next one)."""
        with self._sending:
            link = self._link
            if link is not None:
                try:
                    wire.send(link, message, fds)
                    return True
                except OSError:
                    pass  # the reading side notices the end and looks for the next agent
            if not fds and not isinstance(message, PointsMade):
                self._unsent.append(message)
            return False

    def run(self) -> None:
        watcher = threading.Thread(target=self._watch, name="yoco-watch", daemon=True)
        watcher.start()
        while True:
            link = self._link
            if link is None:
                return
            if not self._hear(link) and not self._reconnect():
                return

    def _hear(self, link: socket.socket) -> bool:
        try:
            heard = wire.receive_from_agent(link)
        except (OSError, msgspec.DecodeError) as error:
            if isinstance(error, msgspec.DecodeError):
                say(f"the agent sent something unknown: {error}")
            return False
        if heard is None:
            return False
        self._take(*heard)
        return True

    def _take(self, message: wire.FromAgent, fds: list[int]) -> None:
        if isinstance(message, Interrupt):
            self.on_interrupt(message)
        elif isinstance(message, Pause):
            self.on_pause(message)
        elif isinstance(message, ArenaKept):
            self.on_kept(message)
        elif isinstance(message, Quit):
            leave()
        else:
            self.verdicts.put((message, fds))

    def _watch(self) -> None:
        wake = threading.Event()
        while not wake.wait(_WATCH_S):
            self.on_watch()

    def _reconnect(self) -> bool:
        """Look for the agent that comes after this one; training goes on meanwhile."""
        with self._sending:
            if self._link is not None:
                self._link.close()
            self._link = None
        path = os.environ.get(wire.RECONNECT, "")
        if not path:
            return False
        pause = threading.Event()
        while True:
            try:
                link = wire.connect(path)
            except OSError:
                # Nothing tells when the socket's file is back.
                pause.wait(_RETRY_S)
                continue
            with self._sending:
                self._link = link
                self.on_new_agent()
                while self._unsent and self.send(self._unsent[0]):
                    self._unsent.popleft()
            return True


def leave() -> None:
    """End this process at once: its rank lives elsewhere, or the job was stopped."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads any more
    os._exit(0)


def _nothing(_message: object) -> None:
    return None
