"""A hint can neither hold up nor fail whoever gives it."""

from __future__ import annotations

import threading
import time

from yoco_platform.core.courier import Courier


def test_hints_are_carried_in_order() -> None:
    courier, seen = Courier(), []
    for number in range(100):
        courier.hand_over("n", lambda number=number: seen.append(number))
    assert courier.flush()
    assert seen == list(range(100))
    assert courier.delivered == 100


def test_whoever_hands_over_does_not_wait_for_a_carrier_that_hangs() -> None:
    courier, release = Courier(), threading.Event()
    courier.hand_over("stuck", release.wait)
    began = time.monotonic()
    for _ in range(50):
        courier.hand_over("next", lambda: None)
    assert time.monotonic() - began < 0.5
    assert not courier.flush(0.05)
    release.set()
    assert courier.flush()


def test_after_a_failure_hints_are_dropped_for_a_while_and_then_carried_again() -> None:
    courier = Courier(quiet_s=0.2)

    def fail() -> None:
        raise ConnectionError("away")

    courier.hand_over("first", fail)
    assert courier.flush()
    assert courier.hand_over("second", lambda: None) is False
    assert (courier.delivered, courier.dropped) == (0, 2)
    threading.Event().wait(0.25)
    assert courier.hand_over("third", lambda: None) is True
    assert courier.flush()
    assert courier.delivered == 1


def test_the_queue_has_an_end() -> None:
    courier, release = Courier(queue_max=2), threading.Event()
    courier.hand_over("stuck", release.wait)
    taken = [courier.hand_over("n", lambda: None) for _ in range(10)]
    release.set()
    assert courier.flush()
    assert taken.count(False) >= 7
    assert courier.dropped == taken.count(False)
