"""Handles of collectives that never let a broken generation surface inside forward or backward.

A script's own mistake surfaces as it is, everywhere.
"""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from .errors import GenerationOver
from .latch import Latch
from .leaving import Apart, Ending

Tensors = list[Any]  # what torch hands to a collective: tensors, or lists of tensors


class LatchedWork(Work):
    """Wraps the inner group's work; ``inner`` None is work that was finished before it began."""

    def __init__(
        self,
        latch: Latch,
        inner: Any,
        result: Tensors,
        ended: Callable[[], None] | None = None,
        ending: Ending | None = None,
        one_to_one: bool = False,
    ) -> None:
        super().__init__()
        self._ending = ending or Ending()
        self._one_to_one = one_to_one
        self._apart: Apart | None = None
        self._latch = latch
        self._inner = inner
        self._result = result
        self._generation = latch.generation
        self._inside = latch.inside
        self._ended = ended
        self._future: Future[Tensors] | None = None
        self._gate: Future[Any] = Future()

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        if self._inner is None:
            return True
        try:
            if self._one_to_one and self._apart is None:
                self._apart = Apart(self._inner.wait)
            limit_s = timeout.total_seconds() if timeout else None  # torch's 0: no limit
            self._ending.wait(self._apart or self._inner, limit_s)
        except RuntimeError as error:
            if self._latch.is_own(error, self._generation):
                raise
            if self._latch.fail(error, self._generation):
                self._latch.answer()
        finally:
            self._ending.seen(self._inner)
            self._end()
        return True

    def is_completed(self) -> bool:
        return (
            self._inner is None or self._latch.error is not None or bool(self._inner.is_completed())
        )

    def is_success(self) -> bool:
        return self._inner is None or bool(self._inner.is_success())

    def exception(self) -> None:
        return None

    def result(self) -> Tensors:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        return int(self._inner._source_rank()) if self._inner is not None else -1

    def source_rank(self) -> int:
        return self._source_rank()

    def get_future(self) -> Future[Tensors]:
        if self._future is None:
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> Future[Tensors]:
        # What is settled is the gate: only a callback's exception is an error for torch's C++ as well.
        future: Future[Tensors] = self._gate.then(_result_of)
        future._set_unwrap_func(_unless_over)
        if self._inner is None:
            self._gate.set_result(self._result)
            return future
        try:
            inner = self._inner.get_future()
        except RuntimeError as error:
            self._break(error, self._latch.is_own(error, self._generation))
            return future
        self._ending.expected.add(self)
        # Called by the inner group's thread, or at once.
        inner.add_done_callback(self._forward)
        return future

    def _forward(self, done: Any) -> None:
        try:
            done.value()
        except RuntimeError as error:
            own = self._latch.is_own(error, self._generation)
            if self._expected():
                self._break(error, own)
        else:
            if self._expected():
                self._end()
                self._gate.set_result(self._result)

    def give_up(self, error: BaseException) -> None:
        """The inner work will not end: settle its future. From any thread."""
        if self._expected():
            self._break(error, own=False)

    def _expected(self) -> bool:
        """True once: whoever gets it settles the future."""
        try:
            self._ending.expected.remove(self)
        except KeyError:
            return False
        return True

    def _break(self, error: BaseException, own: bool) -> None:
        self._end()
        if own:
            self._gate.set_result(error)
            return
        self._latch.fail(error, self._generation)
        if self._inside:
            self._latch.swallowed = True
            self._gate.set_result(self._result)
        else:
            self._gate.set_result(GenerationOver(str(error)))

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


def over_or_gone(work: LatchedWork) -> Callable[[], bool]:
    """Tells whether ``work`` is over, or nobody can wait for it any more. Does not keep it alive."""
    known = weakref.ref(work)

    def asked() -> bool:
        found = known()
        return found is None or found.is_completed()

    return asked


def _result_of(gate: Future[Any]) -> Any:
    """What a collective came to. Raises the script's own mistake."""
    found = gate.value()
    if isinstance(found, Exception):
        raise found
    return found


def _unless_over(found: Any) -> Any:
    """``found``; raised where it is GenerationOver, which torch's futures cannot carry as an error."""
    if isinstance(found, GenerationOver):
        raise found
    return found


def tensors_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensors:
    """What a collective fills: its first argument, as a list (empty for a barrier)."""
    first = arguments[0] if arguments else next(iter(keywords.values()), None)
    if isinstance(first, torch.Tensor):
        return [first]
    return first if isinstance(first, list) else []
