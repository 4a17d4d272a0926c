"""Both halves of the mutual challenge in secrets.py, over a channel."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import secrets, wire
from .channel import Channel
from .errors import ProtocolViolation
from .offers import Offer, OfferBook
from .secrets import StreamIdentity, Transcript

PATIENCE_S_MAX = 30.0


@dataclass(frozen=True)
class Pass:
    """What both sides hold once a stream is open. ``key`` opens its further connections."""

    stream_id: str
    identity: StreamIdentity
    key: bytes = field(repr=False)
    tls_fingerprint: str


def _transcript(
    stream_id: str,
    channel: str,
    identity: StreamIdentity,
    nonces: tuple[bytes, bytes],
    tls_fingerprint: str,
) -> Transcript:
    if any(len(nonce) != secrets.NONCE_BYTES for nonce in nonces):
        raise ProtocolViolation("a nonce of the wrong length")
    return Transcript(wire.PROTOCOL, stream_id, channel, identity, *nonces, tls_fingerprint)


def open_control(
    channel: Channel,
    stream_id: str,
    secret: str,
    identity: StreamIdentity,
    tls_fingerprint: str,
    patience_s: float,
) -> Pass:
    """Target's half. Raises what the source names, or SecretRefused if it lacks the secret."""
    key, nonce = secrets.key_of(secret), secrets.new_nonce()
    channel.send(
        wire.Hello(
            protocol=wire.PROTOCOL,
            stream_id=stream_id,
            identity=identity,
            nonce=nonce,
            patience_s=patience_s,
        )
    )
    challenge = channel.receive(wire.Challenge)
    said = _transcript(stream_id, "control", identity, (nonce, challenge.nonce), tls_fingerprint)
    channel.send(wire.Proof(code=secrets.code_of(key, "target", said)))
    accepted = channel.receive(wire.Accepted)
    secrets.check_code(key, "source", said, accepted.code)
    return Pass(stream_id, identity, secrets.code_of(key, "session", said), tls_fingerprint)


def admit_control(
    channel: Channel, hello: wire.Hello, book: OfferBook, tls_fingerprint: str
) -> tuple[Offer, Pass]:
    """Source's half: returns with the secret spent. A stranger learns nothing but "refused"."""
    if hello.protocol != wire.PROTOCOL:
        raise ProtocolViolation(f"transfer protocol {hello.protocol} is not spoken here")
    offer = book.find(hello.stream_id, max(0.0, min(hello.patience_s, PATIENCE_S_MAX)))
    nonce = secrets.new_nonce()
    channel.send(wire.Challenge(nonce=nonce))
    said = _transcript(
        hello.stream_id, "control", hello.identity, (hello.nonce, nonce), tls_fingerprint
    )
    secrets.check_code(offer.key, "target", said, channel.receive(wire.Proof).code)
    secrets.check_identity(offer.identity, hello.identity)
    book.spend(offer)
    channel.send(wire.Accepted(code=secrets.code_of(offer.key, "source", said)))
    key = secrets.code_of(offer.key, "session", said)
    return offer, Pass(offer.stream_id, offer.identity, key, tls_fingerprint)


def open_data(channel: Channel, held: Pass, index: int) -> None:
    """Target's half of a further connection."""
    nonce = secrets.new_nonce()
    channel.send(
        wire.DataHello(protocol=wire.PROTOCOL, stream_id=held.stream_id, index=index, nonce=nonce)
    )
    challenge = channel.receive(wire.Challenge)
    said = _transcript(
        held.stream_id,
        f"data {index}",
        held.identity,
        (nonce, challenge.nonce),
        held.tls_fingerprint,
    )
    channel.send(wire.Proof(code=secrets.code_of(held.key, "target", said)))


def admit_data(channel: Channel, hello: wire.DataHello, held: Pass, tls_fingerprint: str) -> None:
    """Source's half of a further connection. Raises SecretRefused."""
    nonce = secrets.new_nonce()
    channel.send(wire.Challenge(nonce=nonce))
    said = _transcript(
        held.stream_id,
        f"data {hello.index}",
        held.identity,
        (hello.nonce, nonce),
        tls_fingerprint,
    )
    secrets.check_code(held.key, "target", said, channel.receive(wire.Proof).code)


def digest_code(held: Pass, digest: str) -> bytes:
    """The source's signature under its final digest."""
    return secrets.keyed(held.key, "digest", digest.encode())


def check_digest_code(held: Pass, digest: str, code: bytes) -> None:
    secrets.check_equal(digest_code(held, digest), code)
