"""Latch inside, raise outside: what a broken collective does, depending on who called it.

Inside forward and backward of a protected model the first error is kept and every later collective is
answered by finished dummy work, so that autograd, DDP and FSDP unwind as if all were well. Everywhere else
the error is raised as GenerationOver. Errors carry their generation; late ones of an old one are dropped,
early ones of a generation that this process does not stand in yet are kept for when it does.
"""

from __future__ import annotations

import threading

import torch

from .errors import GenerationOver

GRACE_S = 2.0
"""so long an error that names no connection is held for the interrupt that would explain it"""
_LOST = ("gloo/transport", "connection", "timed out", "broken pipe")
"""words of errors by which a connection ended or stayed silent: no script makes these alone"""


class Latch:
    """One per process. ``fail`` and ``is_own`` may be called from any thread."""

    def __init__(self) -> None:
        self.generation = -1
        self.error: BaseException | None = None
        self.swallowed = False
        """a collective was answered by dummy work since ``settle``"""
        self._depth = 0
        self._over = -1
        self._early: BaseException | None = None
        """ended generation ``_over`` and all before it, while this process stood in an earlier one"""
        self._lock = threading.Condition()

    def enter(self) -> None:
        self._depth += 1

    def leave(self) -> None:
        self._depth = max(self._depth - 1, 0)

    @property
    def inside(self) -> bool:
        """Whether the calling thread is in forward or backward of a protected model."""
        return self._depth > 0 or torch._C._current_graph_task_id() != -1

    def fail(self, error: BaseException, generation: int) -> bool:
        """Keep the first error of the running generation. False for any other: a late one of an older
        is dropped, one of a later makes that begin broken."""
        with self._lock:
            if generation > max(self.generation, self._over):
                self._over, self._early = generation, error
            if generation != self.generation:
                return False
            if self.error is None:
                self.error = error
            self._lock.notify_all()
            return True

    def is_own(self, error: BaseException, generation: int) -> bool:
        """Whether a collective of ``generation`` failed by the script's own mistake: no connection ended, and
        nobody ends the generation. Waits for that, at most ``GRACE_S``."""

        def ended() -> bool:
            return self.error is not None or generation != self.generation

        if any(word in str(error).lower() for word in _LOST):
            return False
        with self._lock:
            return not self._lock.wait_for(ended, GRACE_S)

    def answer(self) -> None:
        """Called where a collective cannot be carried out: returns inside, raises outside."""
        if not self.inside:
            raise GenerationOver(f"generation {self.generation} is over") from self.error
        self.swallowed = True

    def check(self) -> None:
        """Raise GenerationOver when the generation broke."""
        if self.error is not None:
            raise GenerationOver(f"generation {self.generation} is over") from self.error

    def settle(self) -> None:
        """The step passed its vote: what was swallowed before does not count against the tail."""
        self.swallowed = False

    def begin(self, generation: int) -> None:
        """A new generation starts clean, or over when its end was heard of before its beginning."""
        with self._lock:
            self.generation = generation
            self.error = self._early if generation <= self._over else None
            self._lock.notify_all()
        self.swallowed = False
        self._depth = 0
