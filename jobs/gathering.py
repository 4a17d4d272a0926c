"""News of one failure comes in together: the first to bring some waits a moment for the rest.

All ranks of a broken collective report within milliseconds of one another. A pass that has seen them all
decides at once; one that has seen the first alone can only ask the others to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

GATHER_S = 0.08
"""At most so long: a rank that hangs has to be interrupted."""


class Gathering:
    """Per process. ``first`` is False when another thread waits already: it will see our news."""

    def __init__(self, wait_s: float = GATHER_S) -> None:
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._waiting: dict[int, threading.Event] = {}

    def first(self, job_id: int, done: Callable[[int], bool]) -> bool:
        """Call after a commit. True, when it is time for a pass: ``done``, or waited long enough."""
        with self._lock:
            other = self._waiting.get(job_id)
            if other is not None:
                other.set()
                return False
            news = self._waiting[job_id] = threading.Event()
        try:
            self._wait(job_id, news, done)
        finally:
            # Before the pass reads: whoever commits from now on looks for itself.
            with self._lock:
                del self._waiting[job_id]
        return True

    def _wait(self, job_id: int, news: threading.Event, done: Callable[[int], bool]) -> None:
        deadline = time.monotonic() + self._wait_s
        while not done(job_id):
            if not news.wait(max(deadline - time.monotonic(), 0.0)):
                return
            news.clear()
