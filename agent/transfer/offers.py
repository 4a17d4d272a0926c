"""What a data server offers now: each stream once, for a while, to who holds its secret."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import OldGeneration, SecretSpent, StreamExpired, StreamUnknown
from .secrets import SECRET_CHARACTERS_MIN, StreamIdentity, key_of
from .state import ServeReport, SourceFactory


@dataclass
class Offer:
    """One stream. ``spent`` once its secret was proven."""

    stream_id: str
    key: bytes = field(repr=False)
    identity: StreamIdentity
    source: SourceFactory
    expires: float
    on_end: Callable[[ServeReport], None] | None
    spent: bool = False


class OfferBook:
    """Thread-safe. Order of calls: offer -> find -> spend -> withdraw."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        self._first_generation: dict[str, tuple[int, int]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def offer(
        self,
        stream_id: str,
        secret: str,
        identity: StreamIdentity,
        source: SourceFactory,
        lifetime_s: float,
        on_end: Callable[[ServeReport], None] | None = None,
    ) -> None:
        """Open a stream for ``lifetime_s``. A repeat of a stream that is still open changes
        nothing.

        Raises OldGeneration, or ValueError for a secret too short to be one.
        """
        if len(secret) < SECRET_CHARACTERS_MIN:
            raise ValueError(f"a stream secret has at least {SECRET_CHARACTERS_MIN} characters")
        with self._changed:
            self._refuse_old(identity)
            if stream_id in self._offers:
                return
            expires = time.monotonic() + lifetime_s
            self._offers[stream_id] = Offer(
                stream_id, key_of(secret), identity, source, expires, on_end
            )
            self._changed.notify_all()

    def withdraw(self, stream_id: str) -> None:
        with self._changed:
            self._offers.pop(stream_id, None)

    def end_generations(self, job_id: str, attempt: int, generation: int) -> None:
        """Streams of this job before (attempt, generation) are refused from now on."""
        with self._changed:
            known = self._first_generation.get(job_id, (attempt, generation))
            self._first_generation[job_id] = max(known, (attempt, generation))

    def find(self, stream_id: str, patience_s: float) -> Offer:
        """The offer, waiting for it to be made. Raises StreamUnknown, StreamExpired."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or stream_id in self._offers, timeout=patience_s
            )
            offer = self._offers.get(stream_id)
        if offer is None or self._closed:
            raise StreamUnknown("no such stream is offered here")
        return offer

    def spend(self, offer: Offer) -> None:
        """Use the secret up. Raises StreamExpired, SecretSpent, OldGeneration, StreamUnknown."""
        with self._changed:
            if self._offers.get(offer.stream_id) is not offer:
                raise StreamUnknown("the stream was withdrawn")
            if offer.spent:
                raise SecretSpent("this stream was opened before")
            if time.monotonic() > offer.expires:
                raise StreamExpired("the stream's secret is past its lifetime")
            self._refuse_old(offer.identity)
            offer.spent = True

    def close(self) -> None:
        """Nobody waits or is served any more."""
        with self._changed:
            self._closed = True
            self._offers.clear()
            self._changed.notify_all()

    def _refuse_old(self, identity: StreamIdentity) -> None:
        first = self._first_generation.get(identity.job_id)
        if first is not None and (identity.attempt, identity.generation) < first:
            raise OldGeneration(
                f"generation {identity.generation} of attempt {identity.attempt} is over: "
                f"{first[1]} of {first[0]} began"
            )
