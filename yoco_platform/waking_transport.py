"""kombu's memory transport, except that a message wakes its reader instead of waiting to be polled."""

from __future__ import annotations

import threading
import time
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, memory

ALIAS = "yoco-memory"


class _Bell:
    """Counts what happened, so that a reader who looked before it waits misses nothing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._closing = False

    @property
    def count(self) -> int:
        return self._count

    @property
    def closing(self) -> bool:
        return self._closing

    def ring(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count != seen or self._closing, timeout_s)

    def close(self, closing: bool) -> None:
        with self._changed:
            self._closing = closing
            self._changed.notify_all()


_bell = _Bell()


def close() -> None:
    """Let a waiting reader return at once, so that stopping takes no polling interval."""
    _bell.close(True)


def reopen() -> None:
    _bell.close(False)


class WakingChannel(memory.Channel):
    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        super()._put(queue, message, **kwargs)
        _bell.ring()

    def _put_fanout(
        self, exchange: str, message: Any, routing_key: Any = None, **kwargs: Any
    ) -> None:
        super()._put_fanout(exchange, message, routing_key, **kwargs)
        _bell.ring()

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        super().basic_ack(delivery_tag, multiple)
        # A reader may have passed its queue by because its prefetch count was spent.
        _bell.ring()


class WakingTransport(memory.Transport):
    Channel = WakingChannel

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver one message; raises ``TimeoutError`` after ``timeout`` seconds, or at ``close``."""
        deadline = time.monotonic() + (60.0 if timeout is None else timeout)
        while True:
            seen = _bell.count
            assert self.cycle is not None
            try:
                self.cycle.get(self._deliver, timeout=timeout)
            except Empty:
                left = deadline - time.monotonic()
                if left <= 0 or _bell.closing:
                    # Without this pause a closing worker that still asks would spin.
                    if _bell.closing:
                        time.sleep(0.01)
                    raise TimeoutError from None
                _bell.wait(seen, left)
            else:
                return


def register() -> None:
    TRANSPORT_ALIASES[ALIAS] = f"{__name__}:WakingTransport"
