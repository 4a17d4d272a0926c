"""Whoever else finds the port: garbage, giants, guesses and impostors."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.transfer import errors, handshake, secrets, wire
from agent.transfer.channel import Channel
from agent.transfer.digest import bytes_digest
from agent.transfer.offers import OfferBook
from agent.transfer.server import DataServer
from agent.transfer.state import SourceState, TargetState

from .arenas import Arena
from .ways import Stream, Way

Pair = Callable[..., tuple[Arena, Arena]]


@contextmanager
def visit(way: Way) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", way.server.port), timeout=5) as connection:
        yield connection


def frame(data: bytes) -> bytes:
    return wire.HEAD.pack(b"YTX1", len(data)) + data


def answer(connection: socket.socket) -> wire.Refused:
    reply = Channel(connection, 5.0).receive_any()
    assert isinstance(reply, wire.Refused)
    return reply


GARBAGE = {
    "a web browser": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "protocol_violation"),
    "zeros": (bytes(100), "protocol_violation"),
    "a giant": (struct.pack("<4sI", b"YTX1", 2**32 - 1), "frame_too_large"),
    "just too large": (struct.pack("<4sI", b"YTX1", 65 * 1024), "frame_too_large"),
    "no message": (frame(b"{}"), "protocol_violation"),
    "not even text": (frame(b"\xff\xfe\xfd"), "protocol_violation"),
    "nesting": (frame(b"[" * 60_000), "protocol_violation"),
    "an unknown message": (frame(b'{"type":"root"}'), "protocol_violation"),
    "a message out of place": (frame(b'{"type":"ready","mode":"take"}'), "protocol_violation"),
}


@pytest.mark.parametrize(("data", "code"), GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused_and_the_next_target_is_served(
    tcp: Way, pair_of: Pair, data: bytes, code: str
) -> None:
    with visit(tcp) as connection:
        connection.sendall(data)
        assert answer(connection).code == code
    source, target = pair_of()
    tcp.fetch(tcp.offer(source.source()), target.target())
    assert target.content() == source.content()


def test_a_stranger_who_says_half_a_word_is_let_go() -> None:
    server = DataServer("127.0.0.1", handshake_s=0.2)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"YTX1")
        assert answer(connection).code == "transfer_timeout"
    server.stop()


def test_strangers_beyond_the_limit_are_told_so(tcp: Way) -> None:
    held = [socket.create_connection(("127.0.0.1", tcp.server.port)) for _ in range(128)]
    with visit(tcp) as connection:
        assert answer(connection).code == "server_busy"
    for connection in held:
        connection.close()


def test_another_protocol_version_is_refused(tcp: Way) -> None:
    hello = wire.Hello(
        protocol=99, stream_id="s", identity=tcp.stream().identity, nonce=bytes(32), patience_s=0
    )
    with visit(tcp) as connection:
        connection.sendall(wire.encode(hello))
        assert answer(connection).message == "transfer protocol 99 is not spoken here"


@pytest.mark.parametrize("nonce", [b"", bytes(31), bytes(33)])
def test_a_nonce_of_another_length_is_refused(tcp: Way, nonce: bytes) -> None:
    stream = tcp.offer(SourceState(), what="private")
    hello = wire.Hello(
        protocol=1,
        stream_id=stream.stream_id,
        identity=stream.identity,
        nonce=nonce,
        patience_s=0,
    )
    with visit(tcp) as connection:
        channel = Channel(connection, 5.0)
        channel.send(hello)
        channel.receive(wire.Challenge)
        assert answer(connection).code == "protocol_violation"


def test_a_further_connection_of_no_open_stream_is_refused(tcp: Way) -> None:
    hello = wire.DataHello(protocol=1, stream_id="guess", index=0, nonce=bytes(32))
    with visit(tcp) as connection:
        connection.sendall(wire.encode(hello))
        assert answer(connection).code == "protocol_violation"


def opened(way: Way, stream: Stream) -> tuple[Channel, handshake.Pass]:
    """A stream opened by hand up to the point where its connections may come."""
    channel = Channel(socket.create_connection(("127.0.0.1", way.server.port)), 5.0)
    held = handshake.open_control(
        channel, stream.stream_id, stream.secret, stream.identity, "", 1.0
    )
    offered = channel.receive(wire.Offered)
    channel.receive_bytes(offered.manifest_bytes)
    channel.send(wire.Ready(mode="streams", streams=2))
    channel.receive(wire.Sending)
    return channel, held


def test_who_overheard_the_stream_id_gets_no_further_connection(tcp: Way, pair_of: Pair) -> None:
    source, _ = pair_of()
    control, held = opened(tcp, tcp.offer(source.source()))
    forged = handshake.Pass(held.stream_id, held.identity, b"not the key", "")
    with visit(tcp) as connection:
        channel = Channel(connection, 5.0)
        handshake.open_data(channel, forged, 0)
        assert answer(connection).code == "secret_refused"
    control.close()


def test_a_further_connection_opens_once(tcp: Way, pair_of: Pair) -> None:
    source, _ = pair_of()
    control, held = opened(tcp, tcp.offer(source.source()))
    first = Channel(socket.create_connection(("127.0.0.1", tcp.server.port)), 5.0)
    handshake.open_data(first, held, 0)
    first.receive_bytes(wire.CHUNK_HEAD.size)
    with visit(tcp) as connection:
        handshake.open_data(Channel(connection, 5.0), held, 0)
        assert answer(connection).code == "secret_spent"
    first.close()
    control.close()


@pytest.mark.parametrize(
    ("mode", "streams", "code"),
    [
        ("streams", 17, "protocol_violation"),
        ("streams", -1, "protocol_violation"),
        ("everything", 1, "protocol_violation"),
        ("take", 0, "source_unavailable"),
    ],
)
def test_what_a_target_may_not_ask_for(
    tcp: Way, pair_of: Pair, mode: str, streams: int, code: str
) -> None:
    source, _ = pair_of()
    stream = tcp.offer(source.source())
    with visit(tcp) as connection:
        channel = Channel(connection, 5.0)
        handshake.open_control(channel, stream.stream_id, stream.secret, stream.identity, "", 1.0)
        channel.receive_bytes(channel.receive(wire.Offered).manifest_bytes)
        channel.send(wire.Ready(mode=mode, streams=streams))
        assert answer(connection).code == code


def test_a_replayed_proof_opens_nothing(tcp: Way) -> None:
    stream = tcp.offer(SourceState(), what="private")
    key, nonce = secrets.key_of(stream.secret), bytes(32)
    hello = wire.Hello(
        protocol=1, stream_id=stream.stream_id, identity=stream.identity, nonce=nonce, patience_s=0
    )
    old = secrets.Transcript(
        1, stream.stream_id, "control", stream.identity, nonce, os.urandom(32), ""
    )
    with visit(tcp) as connection:
        channel = Channel(connection, 5.0)
        channel.send(hello)
        channel.receive(wire.Challenge)
        channel.send(wire.Proof(code=secrets.code_of(key, "target", old)))
        assert answer(connection).code == "secret_refused"


# --- impostors: a source that is not, or is not what it should be ---


class Impostor:
    """Listens where the source should; ``behave`` gets each control connection."""

    def __init__(self, behave: Callable[[Channel], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._behave = behave
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        channel = Channel(connection, 5.0)
        try:
            self._behave(channel)
        except errors.TransferError:
            pass
        finally:
            channel.close()

    def close(self) -> None:
        self._thread.join(timeout=5)
        self._listener.close()


@contextmanager
def impostor(way: Way, behave: Callable[[Channel], None]) -> Iterator[None]:
    fake = Impostor(behave)
    way.server.port = fake.port
    yield
    fake.close()


def test_a_source_without_the_secret_is_refused_before_it_learns_anything(
    tcp: Way, pair_of: Pair
) -> None:
    _, target = pair_of()
    heard: list[type] = []

    def without_the_secret(channel: Channel) -> None:
        heard.append(type(channel.receive_any()))
        channel.send(wire.Challenge(nonce=bytes(32)))
        proof = channel.receive(wire.Proof)
        heard.append(type(proof))
        channel.send(wire.Accepted(code=proof.code))
        heard.append(type(channel.receive_any()))

    with impostor(tcp, without_the_secret), pytest.raises(errors.SecretRefused):
        tcp.fetch(tcp.stream(), target.target())
    assert heard == [wire.Hello, wire.Proof, wire.Refused]


def hostile(stream: Stream, then: Callable[[Channel], None]) -> Callable[[Channel], None]:
    """A source that holds the secret and means harm."""

    def behave(channel: Channel) -> None:
        book = OfferBook()
        book.offer(stream.stream_id, stream.secret, stream.identity, SourceState, 60.0)
        hello = channel.receive(wire.Hello)
        handshake.admit_control(channel, hello, book, "")
        then(channel)

    return behave


def offer(manifest: bytes, *blobs: wire.BlobHead) -> bytes:
    head = wire.Offered(manifest_bytes=len(manifest), blobs=list(blobs), takeable=False)
    return wire.encode(head) + manifest


def blob(name: str = "fence", size: int = 3, digest: bytes = bytes(16)) -> wire.BlobHead:
    return wire.BlobHead(name=name, step=1, size=size, digest=digest)


ALLOWED = wire.encode(wire.Sending())
EMPTY = b'{"schema_hash":"","storages":[],"tensors":[]}'
HOSTILE = {
    "a manifest out of range": (offer(b'{"storages":[{"id":0,"bytes":-1}]}'), "manifest_invalid"),
    "storages in private state": (
        offer(
            b'{"storages":[{"id":0,"bytes":4}],"tensors":[{"name":"w","role":"p","shape":[1],'
            b'"dtype":"int32","strides":[1],"storage_id":0,"offset_bytes":0,"bytes":4}]}'
        ),
        "manifest_invalid",
    ),
    "a manifest beyond any size": (
        wire.encode(wire.Offered(manifest_bytes=2**40, blobs=[], takeable=False)),
        "manifest_invalid",
    ),
    "a manifest below any size": (
        wire.encode(wire.Offered(manifest_bytes=-1, blobs=[], takeable=False)),
        "manifest_invalid",
    ),
    "a blob of another part": (offer(EMPTY, blob("small")) + ALLOWED, "protocol_violation"),
    "a blob of no name": (offer(EMPTY, blob("../etc")) + ALLOWED, "protocol_violation"),
    "a blob twice": (
        offer(EMPTY, blob(size=0, digest=bytes_digest(b"")), blob()) + ALLOWED,
        "protocol_violation",
    ),
    "a blob beyond any size": (offer(EMPTY, blob(size=2**50)) + ALLOWED, "protocol_violation"),
    "a blob below any size": (offer(EMPTY, blob(size=-1)) + ALLOWED, "protocol_violation"),
    "a damaged blob": (offer(EMPTY, blob()) + ALLOWED + b"abc", "digest_mismatch"),
    "an unsigned digest": (
        offer(EMPTY) + ALLOWED + wire.encode(wire.SourceDigest(digest="x", code=bytes(32))),
        "secret_refused",
    ),
    "a word it does not know": (
        wire.encode(wire.Refused(code="rm -rf", message="no")),
        "transfer_failed",
    ),
}


@pytest.mark.parametrize(("data", "code"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_source_is_refused_by_name(tcp: Way, data: bytes, code: str) -> None:
    stream = tcp.stream(what="private")

    def then(channel: Channel) -> None:
        channel.send_bytes(data)
        channel.receive_any()
        channel.receive_any()
        channel.receive_any()

    with impostor(tcp, hostile(stream, then)), pytest.raises(errors.TransferError) as caught:
        tcp.fetch(stream, TargetState())
    assert caught.value.code == code


@given(st.binary(max_size=300))
def test_no_bytes_make_a_decoder_fail_in_another_way(data: bytes) -> None:
    try:
        wire.decode(data)
        wire.message_bytes(data[: wire.HEAD.size].ljust(wire.HEAD.size, b"\0"))
    except errors.ProtocolViolation:
        return
    assert data


def test_every_error_has_a_code_of_its_own() -> None:
    def count(kind: type[errors.TransferError]) -> int:
        return 1 + sum(count(child) for child in kind.__subclasses__())

    assert len(errors.BY_CODE) == count(errors.TransferError)
    for code, kind in errors.BY_CODE.items():
        assert type(errors.from_code(code, "why")) is kind
