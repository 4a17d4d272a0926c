"""Waiting for gloo in a way that can be left.

gloo (torch 2.13) has no abort, and does not tell everyone when a connection ends: an operation whose payload
is half sent or half read by then is neither done nor broken until its own time-out. So an aborted group's
operations are waited for a little while longer, and then left to themselves.
"""

from __future__ import annotations

import ctypes
import datetime
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

LEAVE_S = 1.0
"""What an abort ends has ended within milliseconds; what has not by now never hears of it. gloo touches no
tensor of it any more: its sockets are shut."""
_LOOK_S = 0.1
_MOMENT_S = 0.002
_MANY = 8


class Waits(Protocol):
    """Has a future that somebody waits for where no exception can reach him."""

    def give_up(self, error: BaseException) -> None: ...


class Ending:
    """When one generation's inside of a group was aborted, and what waits for it. For any thread."""

    def __init__(self) -> None:
        self._aborted_at: float | None = None
        self.expected: set[Waits] = set()
        """whose future is not settled yet: whoever takes it out settles it"""
        self._under_way: set[Any] = set()

    def aborted(self) -> None:
        if self._aborted_at is None:
            self._aborted_at = time.monotonic()

    @property
    def hopeless(self) -> bool:
        """What is unfinished now will not be told any more."""
        return self._aborted_at is not None and time.monotonic() >= self._aborted_at + LEAVE_S

    def begun(self, work: Any) -> None:
        """A worker thread of gloo has this collective to end."""
        if len(self._under_way) >= _MANY:
            self._under_way.difference_update(w for w in list(self._under_way) if w.is_completed())
        self._under_way.add(work)

    def seen(self, work: Any) -> None:
        """Forget ``work``, and with it the tensors it holds, if it has ended."""
        if work.is_completed():
            self._under_way.discard(work)

    @property
    def quiet(self) -> bool:
        """Every collective has ended."""
        return all(work.is_completed() for work in list(self._under_way))

    def wait(self, work: Any, timeout_s: float | None = None) -> None:
        """Return once ``work`` is done. Raises RuntimeError when it broke, when the group was aborted and
        it is still not done, or after ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
        while True:
            left_s = max(deadline - time.monotonic(), 0.001)  # torch takes 0 for no limit
            look_s, looked = min(left_s, _LOOK_S), time.monotonic()
            try:
                work.wait(datetime.timedelta(seconds=look_s))
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises what broke it, if it did not end well just now
                    return
                # Raised before the look was over: no time-out of ours.
                if time.monotonic() < looked + look_s / 2 or time.monotonic() >= deadline:
                    raise
            if self.hopeless:
                raise RuntimeError("the group was aborted in the middle of this operation")

    def give_up(self) -> None:
        """Settle every future that is still expected."""
        error = RuntimeError("the group was aborted in the middle of this operation")
        for work in list(self.expected):
            work.give_up(error)


class Apart:
    """``act`` on a thread of its own, for ``Ending.wait``: a send or receive of gloo cannot be waited for in
    parts, it takes its connection along when a wait times out."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._error: Exception | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="yoco-apart", daemon=True).start()

    def _run(self) -> None:
        try:
            self._act()
        except Exception as error:  # noqa: BLE001 - handed to wait(): a thread has nobody to raise to
            self._error = error
        self._ended.set()

    def wait(self, timeout: datetime.timedelta | None = None) -> None:
        """Raises what ``act`` raised, RuntimeError when it has not ended after ``timeout``."""
        if not self._ended.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError("timed out: still under way")
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        return self._ended.is_set()


_left: list[tuple[Ending, list[Any]]] = []


def let_go(ending: Ending, things: list[Any]) -> None:
    """Drop an aborted group of gloo, ``things``, which nobody else may hold.

    It waits for its operations when it is destroyed. So one with an operation that has no end is kept until a
    later call finds it ended, or beyond the end of the interpreter.
    """
    while not ending.quiet and not ending.hopeless:
        time.sleep(_MOMENT_S)
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _left.append((ending, things))
    for entry in list(_left):
        if entry[0].quiet:
            _left.remove(entry)
            for thing in entry[1]:
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))
