"""What a rank shows of its collectives while it trains: written to the header page, read by its agent.

A process that hangs can tell nothing. Its page can: which collective of each group it issued last, and
whether it is inside one. Numbers start anew in each generation, so that ranks can be compared.
"""

from __future__ import annotations

import statistics
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..transfer.arena import UNNUMBERED, Header
from .owntime import OwnTime

USUAL_OVER = 16
"""The usual time of a step is the median over so many."""


@dataclass
class _Pending:
    """One collective under way. ``ended`` finds out what nobody waits for."""

    number: int
    since: float
    ended: Callable[[], bool] = lambda: False


class Tally:
    """The tally of one group. Its methods may be called from different threads."""

    def __init__(self, own: OwnTime, slot: memoryview | None = None) -> None:
        self._own = own
        self._slot = slot
        self._lock = threading.Lock()
        self._issued = 0
        self._next = 0
        self._pending: dict[int, _Pending] = {}

    def move_to(self, name: str, ranks: list[int]) -> None:
        """It is another group's from now on."""
        if self._slot is not None:
            self._slot[0] = _key(name, ranks)

    def reset(self) -> None:
        """A new generation begins."""
        with self._lock:
            self._issued = 0
            for _ in self._pending:
                self._own.end()
            self._pending.clear()
            self._write()

    def begin(self, *, numbered: bool = True) -> int:
        """One collective is issued; the handle to ``end`` it by."""
        with self._lock:
            self._next += 1
            self._issued += numbered
            number = self._issued if numbered else UNNUMBERED
            self._pending[self._next] = _Pending(number, time.monotonic())
            self._own.begin()
            self._write()
            return self._next

    def end(self, handle: int) -> None:
        """It has come through, or broke. Ending it twice is harmless."""
        with self._lock:
            if self._pending.pop(handle, None) is not None:
                self._own.end()
                self._write()

    def follow(self, handle: int, ended: Callable[[], bool]) -> None:
        """``ended`` tells when it is over though nobody may wait for it. Asked from any thread."""
        with self._lock:
            pending = self._pending.get(handle)
            if pending is not None:
                pending.ended = ended

    def oldest_pending_s(self) -> float:
        """Seconds for which the oldest unfinished collective has been waited for, 0.0 without one. Those that
        are over are let go here."""
        with self._lock:
            known = list(self._pending.items())
        # Not under the lock: what is asked may be the last to hold its tensors.
        for handle in [handle for handle, pending in known if pending.ended()]:
            self.end(handle)
        with self._lock:
            began = min((pending.since for pending in self._pending.values()), default=None)
        return 0.0 if began is None else time.monotonic() - began

    def _write(self) -> None:
        if self._slot is None:
            return
        first = next(iter(self._pending.values()), None)
        self._slot[1] = self._issued
        self._slot[2] = 0 if first is None else first.number


class Tallies:
    """The tallies of a process and the usual time of its steps, on its header page."""

    def __init__(self, header: Header | None) -> None:
        self._header = header
        self.own = OwnTime()
        self._steps: deque[float] = deque(maxlen=USUAL_OVER)

    def of_group(self, name: str, ranks: list[int]) -> Tally:
        """A group's tally; one that finds no room on the page is kept and not shown."""
        if self._header is None:
            return Tally(self.own)
        return Tally(self.own, self._header.group_slot(_key(name, ranks)))

    def beat(self) -> None:
        """A thread of this process runs: it is neither stopped nor does native code keep the GIL."""
        if self._header is not None:
            self._header.set("beat_ns", time.monotonic_ns())

    def stepped(self, step_ms: float) -> None:
        if self._header is not None:
            self._steps.append(step_ms)
            self._header.set("usual_ns", int(statistics.median(self._steps) * 1e6))


def _key(name: str, ranks: list[int]) -> int:
    """Alike on all members: torch gives a group one name everywhere, but not one group one name."""
    text = f"{name}:{','.join(map(str, ranks))}".encode()
    return zlib.crc32(text) << 24 | zlib.adler32(text) & 0xFFFFFF
