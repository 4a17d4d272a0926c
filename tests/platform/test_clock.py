"""The clock runs each pass, survives one that fails, and yields to another process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from django.db import connection

from yoco_platform.core.locks import advisory_lock
from yoco_platform.passes import Clock, run_pass

pytestmark = pytest.mark.django_db(transaction=True)
ran: list[str] = []


def good() -> None:
    ran.append("good")


def bad() -> None:
    ran.append("bad")
    raise RuntimeError("this pass fails")


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    return condition()


def test_a_failing_pass_stops_neither_itself_nor_another() -> None:
    ran.clear()
    clock = Clock([f"{__name__}.good", f"{__name__}.bad"], 0.02)
    clock.start()
    assert _until(lambda: ran.count("good") >= 3 and ran.count("bad") >= 3)
    clock.stop()
    after = len(ran)
    threading.Event().wait(0.1)
    assert len(ran) == after


def test_a_pass_that_another_process_runs_is_left_to_it() -> None:
    ran.clear()
    results: list[bool] = []

    def elsewhere() -> None:
        results.append(run_pass(f"{__name__}.good"))
        connection.close()

    with advisory_lock(f"{__name__}.good"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(10)
    assert (results, ran) == ([False], [])
    assert run_pass(f"{__name__}.good") is True


def test_a_pass_that_does_not_exist_is_logged_and_not_fatal() -> None:
    assert run_pass("nodes.services.nothing") is False
