"""One thread that carries hints to Redis, so that no request waits for it or fails because of it.

Doorbells and notices are hints: the rows are committed already and a pass by the clock finds them.
So a hint may be dropped; a request may not be held up. After a failure hints are dropped at once for
some seconds, for each would otherwise wait for its time-out.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

QUEUE_MAX = 10_000
QUIET_S = 3.0


class Courier:
    """Runs hints in order on a daemon thread of its own; ``hand_over`` never blocks nor raises."""

    def __init__(self, *, queue_max: int = QUEUE_MAX, quiet_s: float = QUIET_S) -> None:
        self._queue: deque[tuple[str, Callable[[], object]]] = deque()
        self._wake = threading.Condition()
        self._queue_max = queue_max
        self._quiet_s = quiet_s
        self._quiet_until = 0.0
        self._busy = False
        self._pid = 0
        self.delivered = 0
        self.dropped = 0

    def hand_over(self, what: str, hint: Callable[[], object]) -> bool:
        """Queue one hint. False when it was dropped: too many wait, or the carrier is away."""
        with self._wake:
            if len(self._queue) >= self._queue_max or time.monotonic() < self._quiet_until:
                self.dropped += 1
                return False
            self._start_once()
            self._queue.append((what, hint))
            self._wake.notify_all()
        return True

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything handed over is delivered or dropped."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    def _start_once(self) -> None:
        # A fork inherits the object but not the thread.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._queue.clear()
            threading.Thread(target=self._run, name="courier", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: bool(self._queue))
                what, hint = self._queue.popleft()
                self._busy = True
            try:
                hint()
                self.delivered += 1
            except Exception as error:  # noqa: BLE001  a hint may fail in any way its carrier can
                self._give_up(what, error)

    def _give_up(self, what: str, error: Exception) -> None:
        with self._wake:
            lost = 1 + len(self._queue)
            self.dropped += lost
            self._queue.clear()
            self._quiet_until = time.monotonic() + self._quiet_s
        log.warning(
            "hints_dropped", hint=what, dropped=lost, error=str(error), quiet_s=self._quiet_s
        )


courier = Courier()
