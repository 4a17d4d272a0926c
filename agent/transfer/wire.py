"""Frames of a stream: small JSON messages, raw bytes whose length a message announced, descriptors.

A frame that is not ours, or too large, is refused before anything is allocated for it.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from .errors import FrameTooLarge, ProtocolViolation, from_code
from .secrets import StreamIdentity

PROTOCOL = 1
MESSAGE_BYTES_MAX = 64 * 1024
BLOB_BYTES_MAX = 64 * 1024**3
STREAMS_MAX = 16
FDS_PER_BATCH = 253
DIGESTS_PER_BATCH = 64

HEAD = struct.Struct("<4sI")
CHUNK_HEAD = struct.Struct("<II16s")
"""index, bytes, digest: ahead of a chunk's bytes."""
_MAGIC = b"YTX1"


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every message."""


class Hello(Frame, frozen=True, tag="hello", kw_only=True):
    """Target: I want this stream. Waits up to ``patience_s`` for it to be offered."""

    protocol: int
    stream_id: str
    identity: StreamIdentity
    nonce: bytes
    patience_s: float


class DataHello(Frame, frozen=True, tag="data_hello", kw_only=True):
    """Target: one more connection, ``index`` of those announced in Ready."""

    protocol: int
    stream_id: str
    index: int
    nonce: bytes


class Challenge(Frame, frozen=True, tag="challenge", kw_only=True):
    nonce: bytes


class Proof(Frame, frozen=True, tag="proof", kw_only=True):
    code: bytes


class Accepted(Frame, frozen=True, tag="accepted", kw_only=True):
    code: bytes


class BlobHead(Frame, frozen=True, kw_only=True):
    name: str
    step: int
    size: int
    digest: bytes


class Offered(Frame, frozen=True, tag="offered", kw_only=True):
    """Source: what there is. ``manifest_bytes`` raw bytes follow."""

    manifest_bytes: int
    blobs: list[BlobHead]
    takeable: bool


class Ready(Frame, frozen=True, tag="ready", kw_only=True):
    """Target: the manifests agree; send. Blobs follow on this connection, storages by the carrier.

    streams: over that many further connections; fds: descriptors and the source's digests, over
    this one; take: the descriptors alone.
    """

    mode: str
    streams: int = 0


class Sending(Frame, frozen=True, tag="sending", kw_only=True):
    """Source: the further connections may come; blobs follow."""


class Descriptors(Frame, frozen=True, tag="descriptors", kw_only=True):
    """Source: the next descriptors, one (storage id, device, inode) each."""

    storages: list[tuple[int, int, int]]


class Digests(Frame, frozen=True, tag="digests", kw_only=True):
    """Source: digests of the next chunks of its own memory, from index ``first``."""

    first: int
    digests: list[bytes]


class SourceDigest(Frame, frozen=True, tag="source_digest", kw_only=True):
    """Source: everything is sent, and this is its digest, under the secret."""

    digest: str
    code: bytes


class Verdict(Frame, frozen=True, tag="verdict", kw_only=True):
    """Target: what landed has this digest. The last word."""

    digest: str


class Refused(Frame, frozen=True, tag="refused", kw_only=True):
    """Either side: no, and why. The connection ends."""

    code: str
    message: str


AnyFrame = (
    Hello
    | DataHello
    | Challenge
    | Proof
    | Accepted
    | Offered
    | Ready
    | Sending
    | Descriptors
    | Digests
    | SourceDigest
    | Verdict
    | Refused
)
AnyFrameType = TypeVar("AnyFrameType", bound=Frame)

_decoder = msgspec.json.Decoder(AnyFrame)


def encode(frame: Frame) -> bytes:
    """Head and message."""
    data = msgspec.json.encode(frame)
    if len(data) > MESSAGE_BYTES_MAX:
        raise FrameTooLarge(f"a message of {len(data)} bytes")
    return HEAD.pack(_MAGIC, len(data)) + data


def message_bytes(head: bytes | bytearray) -> int:
    """Length of the message behind ``head``. Raises before anything is allocated for it."""
    magic, size = HEAD.unpack(head)
    if magic != _MAGIC:
        raise ProtocolViolation("the peer does not speak the transfer protocol")
    if size > MESSAGE_BYTES_MAX:
        raise FrameTooLarge(f"a message of {size} bytes was announced")
    return int(size)


def decode(data: bytes | bytearray) -> AnyFrame:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"malformed message: {error}") from error


def expect(frame: AnyFrame, kind: type[AnyFrameType]) -> AnyFrameType:
    """The frame if it is of ``kind``. Raises the error the peer named, or ProtocolViolation."""
    if isinstance(frame, kind):
        return frame
    if isinstance(frame, Refused):
        raise from_code(frame.code, frame.message)
    raise ProtocolViolation(f"{type(frame).__name__} came where {kind.__name__} belongs")
