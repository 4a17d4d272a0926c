"""What protection costs a step, measured where it is spent and told now and then."""

from __future__ import annotations

import math
import statistics
import time

from ..link import CostsMeasured
from .session import Session
from .step import Stepper

FIRST_STEP = 3
EVERY_S = 10.0


class Costs:
    """Means over the steps since the last report, the first one soon, then one every ``EVERY_S``. Of the own
    time the median: a step in which a rank evaluates is no pace."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._own: list[float] = []
        self._sent_at = -math.inf

    def note(self, session: Session, stepper: Stepper) -> None:
        """A step was committed. Copies begin with step 1, and the first of them describes itself."""
        if stepper.counters.step < FIRST_STEP:
            return
        for name, value in measured(stepper).items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._own.append(stepper.own_ms)
        now = time.monotonic()
        if now - self._sent_at < EVERY_S:
            return
        means = {name: total / len(self._own) for name, total in self._sums.items()}
        means["own_ms"] = statistics.median(self._own)
        session.send(CostsMeasured(step=stepper.counters.step, costs=means))
        self._sums, self._own, self._sent_at = {}, [], now


def measured(stepper: Stepper) -> dict[str, float]:
    """Of the last step; what this job does not have is left out. See protocol.RankCosts."""
    costs = {"prepare_ms": stepper.prepare_s * 1000.0, "vote_ms": stepper.vote_s * 1000.0}
    if stepper.copies.to is not None:
        costs["private_bytes"] = float(stepper.copy_bytes)
    if stepper.shadow is not None:
        costs["shadow_bytes"] = float(stepper.shadow.bytes)
        costs["shadow_ms"] = stepper.shadow.copy_s * 1000.0
    if stepper.buddy is not None:
        costs["buddy_bytes"] = float(stepper.buddy.bytes_sent)
        costs["buddy_ms"] = stepper.buddy.copy_s * 1000.0
        costs["buddy_wait_ms"] = stepper.buddy.wait_s * 1000.0
    return costs | stepper.further_costs()
