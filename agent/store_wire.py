"""Frames of the key-value store that ranks meet in: what client and server agree on.

A frame is a 4-byte little-endian length and a body. A body is one code byte and any number of fields,
each a 4-byte little-endian length and its bytes. Order of frames on one connection:
    server: CHALLENGE(server nonce)
    client: OPEN(prefix, client nonce, proof, patience in ms)
    server: OK(proof) or REFUSED
    then any number of: client request, server reply.
The proofs are HMAC-SHA256 over both nonces and the prefix, keyed with the prefix's secret, so that the
secret itself never travels and a server without it is found out too.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from enum import IntEnum

FRAME_BYTES_MAX = 16 * 1024 * 1024
OPEN_BYTES_MAX = 4096
KEY_BYTES_MAX = 1024
NONCE_BYTES = 32

_LENGTH = struct.Struct("<I")
_INTEGER = struct.Struct("<q")


class Op(IntEnum):
    """First byte of a client's frame."""

    OPEN, SET, GET, ADD, COMPARE_SET, CHECK, WAIT, DELETE, NUM_KEYS, APPEND, MULTI_SET = range(11)


class Status(IntEnum):
    """First byte of a server's frame."""

    CHALLENGE, OK, TIMEOUT, REFUSED, CLOSED, BAD_FRAME, FULL = range(7)


class FrameError(ValueError):
    """Bytes from the other end that are no frame of this protocol."""


def pack(code: int, fields: list[bytes]) -> bytes:
    """One frame, length included. Raises FrameError beyond FRAME_BYTES_MAX."""
    parts = [bytes((code,))]
    for field in fields:
        parts.append(_LENGTH.pack(len(field)))
        parts.append(field)
    body = b"".join(parts)
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(f"frame of {len(body)} bytes, the limit is {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


def body_length(head: bytes | bytearray, limit: int = FRAME_BYTES_MAX) -> int:
    """Length announced by the four bytes ``head``. Raises FrameError when it is zero or too long."""
    (length,) = _LENGTH.unpack(head)
    if not 0 < length <= limit:
        raise FrameError(f"frame of {length} bytes, the limit is {limit}")
    return int(length)


def unpack(body: bytes) -> tuple[int, list[bytes]]:
    """Code and fields of one body. Raises FrameError when the lengths inside do not add up."""
    fields: list[bytes] = []
    at, end = 1, len(body)
    while at < end:
        if at + _LENGTH.size > end:
            raise FrameError("frame ends inside a length")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if at + length > end:
            raise FrameError("frame ends inside a field")
        fields.append(body[at : at + length])
        at += length
    return body[0], fields


def integer(value: int) -> bytes:
    return _INTEGER.pack(value)


def to_integer(field: bytes) -> int:
    if len(field) != _INTEGER.size:
        raise FrameError("an integer field has 8 bytes")
    return int(_INTEGER.unpack(field)[0])


def proof(
    secret: str, side: bytes, server_nonce: bytes, client_nonce: bytes, prefix: bytes
) -> bytes:
    """What ``side`` (b"client" or b"server") shows to prove that it knows ``secret``."""
    message = b"yoco-store\0" + side + b"\0" + server_nonce + client_nonce + prefix
    return hmac.new(secret.encode(), message, hashlib.sha256).digest()
