"""The source's side of one open stream."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from . import handshake, wire
from .channel import Channel
from .digest import bytes_digest, identity_digest, read_chunk, state_digest, views_digest
from .errors import (
    PeerLost,
    ProtocolViolation,
    SecretSpent,
    SourceUnavailable,
    TransferCorrupt,
    TransferError,
    TransferTimeout,
)
from .handshake import Pass
from .memory import Views
from .offers import Offer
from .plan import CHUNK_BYTES, Chunk, Plan, source_plan
from .state import ServeReport, SourceState

READY_S = 60.0
"""How long a target may compare manifests and map its memory."""


@dataclass
class Session:
    """One open stream: what its connections share. ``digests``: one per chunk once it was sent."""

    held: Pass
    source: SourceState
    plan: Plan
    streams: int = 0
    digests: list[bytes] = field(default_factory=list)
    _begun: set[int] = field(default_factory=set)
    _ended: int = 0
    _error: TransferError | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def begin(self, index: int) -> None:
        """A further connection was authenticated. Raises SecretSpent the second time."""
        with self._changed:
            if not 0 <= index < self.streams:
                raise ProtocolViolation(f"connection {index} of {self.streams}")
            if index in self._begun:
                raise SecretSpent(f"connection {index} was opened before")
            self._begun.add(index)
            self._changed.notify_all()

    def end(self, error: TransferError | None) -> None:
        with self._changed:
            self._ended += 1
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self, stall_s: float) -> None:
        """Until every connection has sent its share. Raises the first error of any."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: self._error is not None or len(self._begun) == self.streams, stall_s
            )
            if not came:
                raise TransferTimeout("the target never opened its connections")
            # Each connection has limits of its own, so this wait ends.
            self._changed.wait_for(lambda: self._error or self._ended == self.streams)
            if self._error is not None:
                raise self._error


class Sessions:
    """Open streams by id, for the further connections that belong to them."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}
        self._lock = threading.Lock()

    def add(self, session: Session) -> None:
        with self._lock:
            self._open[session.held.stream_id] = session

    def remove(self, session: Session) -> None:
        with self._lock:
            self._open.pop(session.held.stream_id, None)

    def find(self, stream_id: str) -> Session:
        with self._lock:
            session = self._open.get(stream_id)
        if session is None:
            raise ProtocolViolation("a further connection of a stream that is not open")
        return session


def serve_control(
    channel: Channel, offer: Offer, held: Pass, sessions: Sessions, stall_s: float
) -> None:
    """Serve one stream whose secret was just spent; ``offer.on_end`` learns how it ended."""
    report = ServeReport(offer.stream_id, TransferError.code, "ended unexpectedly", 0, "")
    try:
        source = _call(offer)
        try:
            report = _serve(channel, source, held, sessions, stall_s)
        finally:
            source.release()
    except TransferError as error:
        report = ServeReport(offer.stream_id, error.code, error.message, 0, "")
        raise
    finally:
        if offer.on_end is not None:
            offer.on_end(report)


def _call(offer: Offer) -> SourceState:
    try:
        return offer.source()
    except TransferError:
        raise
    except Exception as error:
        raise SourceUnavailable(f"the state could not be brought to rest: {error}") from error


def _serve(
    channel: Channel, source: SourceState, held: Pass, sessions: Sessions, stall_s: float
) -> ServeReport:
    source.check(held.identity.what)
    session = Session(held, source, source_plan(source.manifest))
    session.digests = [b""] * len(session.plan.chunks)
    heads = [
        wire.BlobHead(name=name, step=step, size=len(data), digest=bytes_digest(data))
        for name, (step, data) in source.blobs.items()
    ]
    manifest = source.manifest.encode()
    channel.send(wire.Offered(manifest_bytes=len(manifest), blobs=heads, takeable=source.takeable))
    channel.send_bytes(manifest)
    channel.limit_waits(READY_S)
    ready = channel.receive(wire.Ready)
    channel.limit_waits(stall_s)
    digest = _send_all(channel, session, ready, sessions, stall_s, heads)
    channel.send(wire.SourceDigest(digest=digest, code=handshake.digest_code(held, digest)))
    if channel.receive(wire.Verdict).digest != digest:
        raise TransferCorrupt("the target digested other bytes")
    moved = sum(head.size for head in heads)
    moved += 0 if ready.mode == "take" else session.plan.bytes
    return ServeReport(held.stream_id, "", "", moved, digest)


def _send_all(
    channel: Channel,
    session: Session,
    ready: wire.Ready,
    sessions: Sessions,
    stall_s: float,
    heads: list[wire.BlobHead],
) -> str:
    source = session.source
    if ready.mode == "streams":
        if not 0 <= ready.streams <= wire.STREAMS_MAX:
            raise ProtocolViolation(f"{ready.streams} connections asked for")
        session.streams = ready.streams
        sessions.add(session)
    elif ready.mode == "take" and not source.takeable:
        raise SourceUnavailable("the memory's owner lives: it can be copied, not taken")
    elif ready.mode not in ("fds", "take"):
        raise ProtocolViolation(f"unknown mode {ready.mode[:64]!r}")
    try:
        channel.send(wire.Sending())
        for _, data in source.blobs.values():
            channel.send_bytes(data)
        if ready.mode == "streams":
            _await_streams(channel, session, stall_s)
        else:
            _send_descriptors(channel, source)
    finally:
        sessions.remove(session)
    if ready.mode == "fds":
        _send_digests(channel, session)
    blobs = {head.name: (head.step, head.size, head.digest) for head in heads}
    if ready.mode == "take":
        parts = identity_digest(source.manifest, source.storages)
        return state_digest(source.manifest.schema_hash, [parts], blobs)
    return state_digest(source.manifest.schema_hash, session.digests, blobs)


def _await_streams(channel: Channel, session: Session, stall_s: float) -> None:
    try:
        session.wait(stall_s)
    except (PeerLost, TransferTimeout) as error:
        raise channel.last_word(error) from error


def serve_data(
    channel: Channel, hello: wire.DataHello, sessions: Sessions, tls_fingerprint: str
) -> None:
    """Send one connection's share of an open stream.

    What goes wrong on the way is told on the control connection: here it would be taken for state.
    """
    session = sessions.find(hello.stream_id)
    handshake.admit_data(channel, hello, session.held, tls_fingerprint)
    session.begin(hello.index)
    error: TransferError | None = None
    try:
        reader = Reader(session.source)
        for chunk in session.plan.of_stream(hello.index, session.streams):
            with reader.views(chunk) as views:
                digest = views_digest(views)
                session.digests[chunk.index] = digest
                channel.send_bytes(wire.CHUNK_HEAD.pack(chunk.index, chunk.bytes, digest))
                if session.source.memory is None:
                    channel.send_chunk(chunk, session.source.storages, views)
                else:
                    for view in views:
                        channel.send_bytes(view)
    except TransferError as raised:
        error = raised
    finally:
        session.end(error)


class Reader:
    """The chunks of a source, one at a time: its mapped memory, or a copy in one buffer."""

    def __init__(self, source: SourceState) -> None:
        self._source = source
        self._buffer = memoryview(bytearray(0 if source.memory else CHUNK_BYTES))

    def views(self, chunk: Chunk) -> Views:
        if self._source.memory is not None:
            return self._source.memory.source_views(chunk)
        return Views([read_chunk(chunk, self._source.storages, self._buffer)])

    def digest(self, chunk: Chunk) -> bytes:
        with self.views(chunk) as views:
            return views_digest(views)


def _send_descriptors(channel: Channel, source: SourceState) -> None:
    storages = [storage.id for storage in source.manifest.storages if storage.bytes]
    for start in range(0, len(storages), wire.FDS_PER_BATCH):
        ids = storages[start : start + wire.FDS_PER_BATCH]
        stats = [(each, os.fstat(source.storages[each])) for each in ids]
        channel.send(
            wire.Descriptors(storages=[(each, stat.st_dev, stat.st_ino) for each, stat in stats])
        )
        channel.send_descriptors([source.storages[each] for each in ids])


def _send_digests(channel: Channel, session: Session) -> None:
    """Digest our own memory while the target copies it: it must not take our word from its copy."""
    reader = Reader(session.source)
    chunks = session.plan.chunks
    for first in range(0, len(chunks), wire.DIGESTS_PER_BATCH):
        batch = [reader.digest(each) for each in chunks[first : first + wire.DIGESTS_PER_BATCH]]
        session.digests[first : first + len(batch)] = batch
        channel.send(wire.Digests(first=first, digests=batch))
