"""The clock: calls the periodic passes directly, from threads of the web process, needing no broker.

Doorbells only make a pass come earlier; with every doorbell gone the platform is slower, not wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog
from django.conf import settings
from django.db import connection
from django.utils.module_loading import import_string

from yoco_platform.core.locks import advisory_lock

log = structlog.get_logger(__name__)

STOP_S = 5.0


class Clock:
    """One thread for each pass, so that a long one holds up no other."""

    def __init__(self, paths: Sequence[str], period_s: float) -> None:
        self._paths = list(paths)
        self._period_s = period_s
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for path in self._paths:
            thread = threading.Thread(
                target=self._run, args=[path], name=f"clock {path}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Let each pass end what it does; waits for at most ``STOP_S`` seconds."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(STOP_S)

    def _run(self, path: str) -> None:
        while not self._stopping.is_set():
            run_pass(path)
            self._stopping.wait(self._period_s)


def run_pass(path: str) -> bool:
    """Run one pass under its lock. False: another process runs it, or it failed (and was logged)."""
    try:
        with advisory_lock(path) as mine:
            if mine:
                one_pass: Callable[[], object] = import_string(path)
                one_pass()
            return mine
    except Exception:  # the next tick tries again, whatever went wrong
        log.exception("pass_failed", one_pass=path)
        return False
    finally:
        # With a pool this hands the connection back; after an error it may be a broken one.
        connection.close()


def start_clock() -> Callable[[], None]:
    """Start the configured clock and return what stops it."""
    clock = Clock(settings.CLOCK_PASSES, settings.CLOCK_S)
    clock.start()
    return clock.stop
