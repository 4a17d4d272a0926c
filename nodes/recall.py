"""Answers remembered for a few seconds in this process, so that a heartbeat costs one statement."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recall(Generic[K, V]):
    """At most ``entries`` answers, each for ``seconds``. The oldest is forgotten first."""

    def __init__(self, *, entries: int, seconds: float) -> None:
        self._entries = entries
        self._seconds = seconds
        self._lock = threading.Lock()
        self._answers: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The remembered answer, or what ``load`` says now. An error of ``load`` is not remembered."""
        now = time.monotonic()
        with self._lock:
            known = self._answers.get(key)
        if known is not None and now < known[0]:
            return known[1]
        answer = load()
        with self._lock:
            self._answers[key] = (now + self._seconds, answer)
            self._answers.move_to_end(key)
            while len(self._answers) > self._entries:
                self._answers.popitem(last=False)
        return answer

    def forget(self) -> None:
        with self._lock:
            self._answers.clear()
