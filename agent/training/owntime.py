"""How long a rank is at work itself: what tells a slow one from those that wait for it."""

from __future__ import annotations

import threading
import time

Clocks = tuple[float, float]


class OwnTime:
    """Wall time, except while something that the other ranks answer is pending: a collective, a vote, a copy.

    Then only the processor time of the training thread counts, which whoever waits does not use. So waiting
    for others never counts, and work beside a pending collective does. The training thread is the one that
    ``taken`` is called from; ``begin`` and ``end`` may be called from any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processor = time.pthread_getcpuclockid(threading.get_ident())
        self._pending = 0
        self._pending_since: Clocks = (0.0, 0.0)
        self._waited_s = 0.0
        self._taken_at = time.monotonic()

    def begin(self) -> None:
        """Something is pending from now on; several may be at once."""
        with self._lock:
            self._pending += 1
            if self._pending == 1:
                self._pending_since = self._clocks()

    def end(self) -> None:
        with self._lock:
            self._pending -= 1
            if self._pending == 0:
                self._note_waiting()

    def taken(self) -> float:
        """Own seconds since this was asked last."""
        with self._lock:
            if self._pending:
                self._note_waiting()
            now = time.monotonic()
            own = now - self._taken_at - self._waited_s
            self._taken_at, self._waited_s = now, 0.0
            self._processor = time.pthread_getcpuclockid(threading.get_ident())
            self._pending_since = self._clocks()
            return max(own, 0.0)

    def _note_waiting(self) -> None:
        """Waited: what of the wall time since then the training thread did not run."""
        (wall, processor), now = self._pending_since, self._clocks()
        self._waited_s += max(now[0] - wall - (now[1] - processor), 0.0)
        self._pending_since = now

    def _clocks(self) -> Clocks:
        try:
            processor = time.clock_gettime(self._processor)
        except OSError:  # that thread has ended: nothing of it runs beside what is pending
            processor = self._pending_since[1]
        return time.monotonic(), processor
