"""What charts show of a run, sent in batches."""

from __future__ import annotations

import math
import time

from ..link import PointsMade
from .session import Session

EVERY_S = 0.3
POINTS_MAX = 400
Point = tuple[int, float, float | None, float]


class Progress:
    """Points of (step, unix seconds, loss, step ms). Without a session they go nowhere."""

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self._points: list[Point] = []
        self._generation = 0
        """of the points that wait"""
        self._sent_at = 0.0
        self.reported_loss: float | None = None

    def committed(self, step: int, loss: float | None, step_ms: float) -> None:
        value = self.reported_loss if self.reported_loss is not None else loss
        self.reported_loss = None
        if self._session is None:
            return
        generation = self._session.membership.generation
        if generation != self._generation:
            self.flush()
            self._generation = generation
        self._points.append((step, time.time(), _finite(value), step_ms))
        if time.monotonic() - self._sent_at >= EVERY_S or len(self._points) >= POINTS_MAX:
            self.flush()

    def flush(self) -> None:
        points, self._points = self._points, []
        self._sent_at = time.monotonic()
        if self._session is not None and points:
            self._session.send(PointsMade(generation=self._generation, points=points))


def _finite(value: float | None) -> float | None:
    """JSON has no infinity and no NaN; the step was committed all the same."""
    return value if value is not None and math.isfinite(value) else None
