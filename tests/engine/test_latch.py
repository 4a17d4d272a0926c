"""Whose fault a failed collective is: a connection's, a generation's that ends, or the script's own."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.futures import Future

from agent.training import latch as latches
from agent.training.errors import GenerationOver
from agent.training.latch import Latch
from agent.training.work import LatchedWork

MISTAKE = "Cannot use ReduceOp.BAND with non-integral dtype"
RESET = "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:26340: Connection reset by peer"


class Broken:
    """What gloo gives for a collective that has failed."""

    def __init__(self, words: str) -> None:
        self._future: Future[Any] = Future()
        self._error = RuntimeError(words)
        self._future.set_exception(self._error)  # type: ignore[arg-type]  # torch's stub

    def wait(self, _timeout: datetime.timedelta | None = None) -> None:
        raise self._error

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        return self._future


def waited(work: LatchedWork) -> None:
    work.wait()


def future_waited(work: LatchedWork) -> None:
    work.get_future().wait()


WAYS = pytest.mark.parametrize("wait", [waited, future_waited])
INSIDE = pytest.mark.parametrize("inside", [False, True])
Wait = Callable[[LatchedWork], None]


def begun(inside: bool) -> Latch:
    latch = Latch()
    latch.begin(1)
    if inside:
        latch.enter()
    return latch


@WAYS
@INSIDE
@pytest.mark.timeout(20)
def test_a_scripts_own_mistake_reaches_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch, wait: Wait, inside: bool
) -> None:
    monkeypatch.setattr(latches, "GRACE_S", 0.05)
    latch = begun(inside)
    with pytest.raises(RuntimeError, match=MISTAKE):
        wait(LatchedWork(latch, Broken(MISTAKE), []))
    assert latch.error is None
    assert not latch.swallowed


@WAYS
@INSIDE
@pytest.mark.timeout(20)
def test_the_same_words_are_the_generations_end_when_an_interrupt_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch, wait: Wait, inside: bool
) -> None:
    monkeypatch.setattr(latches, "GRACE_S", 300.0)
    latch = begun(inside)
    interrupt = threading.Timer(0.1, latch.fail, (ConnectionAbortedError("interrupted"), 1))
    interrupt.start()
    if inside:
        wait(LatchedWork(latch, Broken(MISTAKE), []))
    else:
        with pytest.raises(GenerationOver):
            wait(LatchedWork(latch, Broken(MISTAKE), []))
    interrupt.join()
    assert latch.swallowed == inside
    assert str(latch.error) == "interrupted"


@WAYS
@INSIDE
@pytest.mark.timeout(20)
def test_a_connection_that_ended_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch, wait: Wait, inside: bool
) -> None:
    monkeypatch.setattr(latches, "GRACE_S", 300.0)
    latch = begun(inside)
    work = LatchedWork(latch, Broken(RESET), [torch.ones(1)])
    if inside:
        wait(work)
    else:
        with pytest.raises(GenerationOver):
            wait(work)
    assert str(latch.error) == RESET


def test_torchs_own_code_sees_a_mistake_in_a_future_as_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latches, "GRACE_S", 0.05)
    future = LatchedWork(begun(True), Broken(MISTAKE), []).get_future()
    # DDP's reducer waits like this, and takes whatever is no error for its tensors.
    with pytest.raises(RuntimeError, match=MISTAKE):
        torch._C.Future.wait(future)
