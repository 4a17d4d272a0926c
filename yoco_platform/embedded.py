"""One-process mode: Celery's real worker and beat as threads beside the web server."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from celery.apps.beat import Beat  # noqa: F401  (registers beat's default schedule loader)
from celery.beat import EmbeddedService
from celery.worker import WorkController

from yoco_platform import waking_transport
from yoco_platform.celery import app

log = structlog.get_logger(__name__)

READY_S = 10.0
CONCURRENCY = 2


class AlreadyRunning(Exception):
    """Another process holds the lock file; its layer and broker are in its own memory."""


@contextmanager
def single_process(path: Path) -> Iterator[None]:
    """Hold the lock file while inside. Raises ``AlreadyRunning`` with the holder's process id."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise AlreadyRunning(f"Process {holder} runs already; it holds {path}.") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def start_celery() -> Callable[[], None]:
    """Start worker and beat in threads, wait until the worker takes tasks, return what stops both."""
    waking_transport.reopen()
    ready = threading.Event()

    def worker_is_ready(consumer: Any) -> None:
        ready.set()

    worker = WorkController(
        app=app,
        pool_cls="threads",
        concurrency=CONCURRENCY,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        ready_callback=worker_is_ready,
    )
    thread = threading.Thread(target=worker.start, name="celery worker", daemon=True)
    thread.start()
    beat = EmbeddedService(app, thread=True, scheduler_cls="celery.beat:Scheduler")
    beat.start()
    if not ready.wait(READY_S):
        log.warning("celery_worker_slow", waited_s=READY_S)

    def stop() -> None:
        beat.stop()
        waking_transport.close()
        worker.stop()
        thread.join(READY_S)

    return stop
