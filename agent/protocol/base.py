"""Ground of every message: strictness, limits and the protocol number."""

from __future__ import annotations

import msgspec

PROTOCOL = 1
SPOKEN: tuple[int, ...] = (1,)
BODY_BYTES_MAX = 1024 * 1024
EVENTS_PER_BATCH_MAX = 200


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything on the wire."""


class Envelope(Message, frozen=True, kw_only=True):
    """Base of what an HTTP body is: it names the protocol it was written in."""

    protocol: int = PROTOCOL
