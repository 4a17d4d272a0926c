"""Own time: work counts wherever it is done, waiting for others nowhere."""

from __future__ import annotations

import threading
import time

import pytest
from yoco.training import owntime
from yoco.training.owntime import OwnTime


class Clocks:
    """Stands in for the module ``time``: a wall clock and the training thread's processor clock."""

    def __init__(self) -> None:
        self.wall = self.processor = 100.0

    def monotonic(self) -> float:
        return self.wall

    def clock_gettime(self, _clock: int) -> float:
        return self.processor

    def pthread_getcpuclockid(self, _thread: int) -> int:
        return 1

    def work(self, seconds: float) -> None:
        self.wall += seconds
        self.processor += seconds

    def stand(self, seconds: float) -> None:
        self.wall += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(owntime, "time", made)
    return made


def test_waiting_in_a_collective_is_left_out_and_work_beside_it_is_not(clocks: Clocks) -> None:
    own = OwnTime()
    clocks.work(1.0)
    own.begin()
    clocks.work(0.25)
    clocks.stand(8.0)
    own.end()
    clocks.work(0.5)
    assert own.taken() == pytest.approx(1.75)
    assert own.taken() == 0.0


def test_what_stands_outside_of_collectives_is_its_own(clocks: Clocks) -> None:
    own = OwnTime()
    clocks.stand(3.0)
    assert own.taken() == pytest.approx(3.0)


def test_collectives_at_once_are_left_out_once(clocks: Clocks) -> None:
    own = OwnTime()
    own.begin()
    clocks.stand(1.0)
    own.begin()
    clocks.stand(1.0)
    own.end()
    clocks.stand(1.0)
    own.end()
    clocks.work(2.0)
    assert own.taken() == pytest.approx(2.0)


def test_a_collective_over_the_end_of_a_step_is_left_out_of_both(clocks: Clocks) -> None:
    own = OwnTime()
    clocks.work(1.0)
    own.begin()
    clocks.stand(5.0)
    assert own.taken() == pytest.approx(1.0)
    clocks.stand(5.0)
    own.end()
    clocks.work(2.0)
    assert own.taken() == pytest.approx(2.0)


def test_the_thread_that_joined_may_end_before_another_trains() -> None:
    made: list[OwnTime] = []
    joining = threading.Thread(target=lambda: made.append(OwnTime()))
    joining.start()
    joining.join()
    (own,) = made
    own.begin()
    own.end()
    assert own.taken() >= 0.0
    own.begin()
    before = time.thread_time()
    while time.thread_time() < before + 0.05:
        pass
    own.end()
    assert own.taken() >= 0.05  # the clock is the one of who asks now
