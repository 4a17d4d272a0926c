"""How bytes come from a source to a target's memory: the interface, and the part that streams
share.

Order of calls on the target: connect (the control connection) -> handshake -> manifest -> ``mode``
->
``move`` -> ``close``. A carrier may open more connections inside ``move``. It keeps nothing but
what is in flight: bytes are received straight into the target's mapping.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from . import handshake, wire
from .channel import Channel
from .digest import views_digest
from .errors import ProtocolViolation, TransferCorrupt, TransferError
from .handshake import Pass
from .plan import Chunk, Plan
from .state import TargetState

Mode = Literal["streams", "fds", "take"]


@dataclass
class Move:
    """One transfer of storages, planned and agreed. ``take``: the memory itself is wanted."""

    control: Channel
    held: Pass
    plan: Plan
    target: TargetState
    streams: int
    stall_s: float
    take: bool


@dataclass(frozen=True)
class Landed:
    """What a move leaves: a digest per chunk of the target's memory, or the memory itself."""

    digests: Sequence[bytes]
    taken_fds: dict[int, int] = field(default_factory=dict)


class Carrier(Protocol):
    """``name`` is what reports say; ``tls_fingerprint`` is bound into every proof."""

    name: str
    tls_fingerprint: str

    def connect(self, stall_s: float) -> Channel:
        """One more connection. Raises PeerUnreachable, TlsFailed."""

    def mode(self, move: Move) -> Mode:
        """What to ask the source for."""

    def move(self, move: Move) -> Landed:
        """Bring every chunk into the target's memory; after a TransferError nothing is usable."""


def receive_streams(carrier: Carrier, move: Move) -> Landed:
    """Several connections at once, each with every n-th chunk. The first error ends them all."""
    crew = Crew()
    digests = [b""] * len(move.plan.chunks)
    for index in range(move.streams):

        def receive(index: int = index) -> None:
            channel = carrier.connect(move.stall_s)
            with crew.watching(channel):
                handshake.open_data(channel, move.held, index)
                for chunk in move.plan.of_stream(index, move.streams):
                    digests[chunk.index] = receive_chunk(channel, chunk, move.target)

        crew.start(receive)
    crew.join()
    return Landed(digests)


def receive_chunk(channel: Channel, chunk: Chunk, target: TargetState) -> bytes:
    """Receive one chunk into the target; the digest of what landed. Raises TransferCorrupt."""
    expected = receive_chunk_head(channel, chunk)
    with target.views(chunk) as views:
        for view in views:
            channel.receive_into(view)
        landed = views_digest(views)
    check_digest(landed, expected, chunk)
    return landed


def receive_chunk_head(channel: Channel, chunk: Chunk) -> bytes:
    """The source's digest of ``chunk``, which must come next."""
    head = channel.receive_bytes(wire.CHUNK_HEAD.size)
    index, size, digest = wire.CHUNK_HEAD.unpack(head)
    if (index, size) != (chunk.index, chunk.bytes):
        raise ProtocolViolation(
            f"chunk {index} of {size} bytes came where {chunk.index} of {chunk.bytes} belongs"
        )
    return bytes(digest)


def check_digest(landed: bytes, expected: bytes, chunk: Chunk) -> None:
    """Raise TransferCorrupt unless the target's memory digests to what the source's did."""
    if landed != expected:
        raise TransferCorrupt(
            f"chunk {chunk.index} landed as {landed.hex()}, the source read {expected.hex()}"
        )


class Crew:
    """Threads of one transfer: the first error interrupts the rest and is raised by ``join``."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._channels: set[Channel] = set()
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  join() raises it in the caller's thread
                self.stop(error)

        thread = threading.Thread(target=run, name="yoco-fetch", daemon=True)
        self._threads.append(thread)
        thread.start()

    def watching(self, channel: Channel) -> _Watched:
        return _Watched(self, channel)

    def stop(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            channels = list(self._channels)
        for channel in channels:
            channel.interrupt()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            # Else error and frame would hold each other, and the target's memory with them.
            del error

    @property
    def stopped(self) -> bool:
        return self._error is not None

    def add(self, channel: Channel) -> None:
        with self._lock:
            if self._error is not None:
                raise TransferError("another connection of this transfer failed")
            self._channels.add(channel)

    def discard(self, channel: Channel) -> None:
        with self._lock:
            self._channels.discard(channel)


class _Watched:
    def __init__(self, crew: Crew, channel: Channel) -> None:
        self._crew, self._channel = crew, channel

    def __enter__(self) -> None:
        try:
            self._crew.add(self._channel)
        except TransferError:
            self._channel.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._crew.discard(self._channel)
        self._channel.close()
