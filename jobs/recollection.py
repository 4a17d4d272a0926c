"""What each agent said last, in this process: only a change is worth a look at the database."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from msgspec.structs import replace

from agent.protocol import WorkerStatus
from yoco_platform.core import clock

_T = TypeVar("_T")
LOOK_AGAIN_S = 4.0
ENTRIES_MAX = 20_000


class Recollection:
    """``is_new`` is True for another list than last time, and every LOOK_AGAIN_S anyway.

    Where a trail is and how long a rank has stood contradict nothing: ``new_marks`` and ``standing_told``
    look at those.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[int, tuple[float, tuple[WorkerStatus, ...]]] = OrderedDict()
        self._marks: OrderedDict[int, dict[str, int]] = OrderedDict()
        self._standing: set[int] = set()

    def is_new(self, node_id: int, workers: Sequence[WorkerStatus]) -> bool:
        now = time.monotonic()
        said = tuple(replace(w, mark_step=-1, mark_head="", standing=None) for w in workers)
        with self._lock:
            before = self._seen.get(node_id)
            if before is not None and before[1] == said and now - before[0] < LOOK_AGAIN_S:
                return False
            _keep(self._seen, node_id, (now, said))
        return True

    def new_marks(self, node_id: int, workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
        """Workers whose trail has passed another mark since they were last told of here."""
        marks = {w.worker_id: w.mark_step for w in workers if w.mark_step >= 0}
        with self._lock:
            before = self._marks.get(node_id, {})
            _keep(self._marks, node_id, marks)
        return [w for w in workers if w.mark_step >= 0 and before.get(w.worker_id) != w.mark_step]

    def standing_told(self, node_id: int, workers: Sequence[WorkerStatus]) -> bool:
        """Whether a worker here stands still, or one did when its agent last spoke."""
        still = any(worker.standing is not None for worker in workers)
        with self._lock:
            before = node_id in self._standing
            (self._standing.add if still else self._standing.discard)(node_id)
        return still or before


def _keep(known: OrderedDict[int, _T], node_id: int, value: _T) -> None:
    known[node_id] = value
    known.move_to_end(node_id)
    while len(known) > ENTRIES_MAX:
        known.popitem(last=False)


class Arrivals:
    """When each agent's last request came in here, noted before it waits for anything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[int, datetime] = {}

    def note(self, node_id: int) -> None:
        with self._lock:
            self._at[node_id] = clock.now()

    def last(self, node_id: int) -> datetime | None:
        with self._lock:
            return self._at.get(node_id)

    def forget(self) -> None:
        with self._lock:
            self._at.clear()


arrivals = Arrivals()
