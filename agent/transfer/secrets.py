"""One-time secrets: how two agents prove to each other that they hold the same one without sending
it.

    target                                   source
    Hello(stream, identity, nonce)     ->
                                       <-    Challenge(nonce)
    Proof(HMAC "target" over all that) ->    refuses, or spends the secret
                                       <-    Accepted(HMAC "source" over all that)

Both codes cover stream, job, attempt, generation, rank, step, part, both nodes, the kind of
channel, both nonces and the fingerprint of the TLS certificate that each side sees: none can be
used for another stream, in the other direction, a second time, or through a relay that ends the
encryption.
"""

from __future__ import annotations

import hmac
import os
import secrets
from typing import Literal

import msgspec

from .errors import IdentityMismatch, OldGeneration, SecretRefused

NONCE_BYTES = 32
SECRET_CHARACTERS_MIN = 16

What = Literal["shared", "private", "all"]


class StreamIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a stream carries, from where to where. Equal on both sides or nothing is sent."""

    job_id: str
    attempt: int
    generation: int
    rank: int
    step: int
    what: What
    source_node: str
    target_node: str


class Transcript(msgspec.Struct, frozen=True, array_like=True):
    """Everything a proof covers."""

    protocol: int
    stream_id: str
    channel: str
    identity: StreamIdentity
    target_nonce: bytes
    source_nonce: bytes
    tls_fingerprint: str


def new_secret() -> str:
    """256 random bits, for an order."""
    return secrets.token_hex(32)


def new_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def key_of(secret: str) -> bytes:
    return secret.encode()


def keyed(key: bytes, purpose: str, message: bytes) -> bytes:
    """HMAC-SHA256 of ``message`` for one purpose."""
    return hmac.digest(key, purpose.encode() + b"\0" + message, "sha256")


def code_of(key: bytes, direction: str, transcript: Transcript) -> bytes:
    return keyed(key, direction, msgspec.json.encode(transcript))


def check_code(key: bytes, direction: str, transcript: Transcript, code: bytes) -> None:
    """Raise SecretRefused unless this key made ``code`` for this direction and transcript."""
    check_equal(code_of(key, direction, transcript), code)


def check_equal(expected: bytes, found: bytes) -> None:
    """Compare in constant time. Raises SecretRefused."""
    if not hmac.compare_digest(expected, found):
        raise SecretRefused("the peer does not hold this stream's secret")


def check_identity(offered: StreamIdentity, claimed: StreamIdentity) -> None:
    """Raise OldGeneration or IdentityMismatch unless both mean the same stream."""
    if offered == claimed:
        return
    ours, theirs = (offered.attempt, offered.generation), (claimed.attempt, claimed.generation)
    if offered.job_id == claimed.job_id and ours != theirs:
        raise OldGeneration(
            f"offered in generation {offered.generation} of attempt {offered.attempt}, "
            f"asked for in {claimed.generation} of {claimed.attempt}"
        )
    different = [
        field
        for field in StreamIdentity.__struct_fields__
        if getattr(offered, field) != getattr(claimed, field)
    ]
    raise IdentityMismatch("source and target differ in " + ", ".join(different))
