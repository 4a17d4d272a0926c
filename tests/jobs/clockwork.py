"""Time that passes when a test says so: the platform asks one clock, and this is it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.reconcile import reconcile_all
from yoco_platform.core import clock

TICK = timedelta(microseconds=50)


class Clockwork:
    """Moves the platform's clock on. Each look at it takes a tick, so order is kept; how long the machine
    takes for a test changes nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = datetime.now(UTC)
        monkeypatch.setattr(clock, "now", self.now)

    def now(self) -> datetime:
        self._now += TICK
        return self._now

    def pass_on(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)

    def reconcile(self) -> None:
        reconcile_all()
