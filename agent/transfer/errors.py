"""Everything that can end a transfer, as one tree. ``code`` is what travels and what a person
reads.

A peer that refuses says so by code; ``from_code`` turns it back into the same error here.
"""

from __future__ import annotations


class TransferError(Exception):
    """Base. Nothing received so far may be used; another source may be tried."""

    code = "transfer_failed"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


# --- who may receive ---


class StreamRefused(TransferError):
    """The source will not serve this stream to this target."""

    code = "stream_refused"


class StreamUnknown(StreamRefused):
    """Nothing of that id is offered (any more)."""

    code = "stream_unknown"


class StreamExpired(StreamRefused):
    code = "stream_expired"


class SecretRefused(StreamRefused):
    """The peer does not hold the stream's secret."""

    code = "secret_refused"


class SecretSpent(StreamRefused):
    """The secret was used before: a stream opens once."""

    code = "secret_spent"


class OldGeneration(StreamRefused):
    """One side stands in a generation that is over."""

    code = "old_generation"


class IdentityMismatch(StreamRefused):
    """Both hold the secret but do not mean the same rank, step, part or nodes."""

    code = "identity_mismatch"


class TlsRequired(StreamRefused):
    """Off loopback a stream is encrypted unless the configuration says ``off``."""

    code = "tls_required"


# --- what is wrong with the bytes ---


class ProtocolViolation(TransferError):
    """The peer sent something that is not this protocol."""

    code = "protocol_violation"


class FrameTooLarge(ProtocolViolation):
    code = "frame_too_large"


class ManifestInvalid(TransferError):
    """A manifest that cannot describe memory: out of range, twice the same, of an unknown dtype."""

    code = "manifest_invalid"


class SchemaMismatch(TransferError):
    """Source and target do not describe the same tensors."""

    code = "schema_mismatch"


class TransferCorrupt(TransferError):
    """What landed is not what was sent."""

    code = "digest_mismatch"


class TlsFailed(TransferError):
    """Wrong certificate, or records that do not authenticate."""

    code = "tls_failed"


# --- the other side, or the way to it, is not there ---


class PeerUnreachable(TransferError):
    code = "peer_unreachable"


class PeerLost(TransferError):
    """The connection ended before the transfer did."""

    code = "peer_lost"


class TransferTimeout(TransferError):
    """The peer is connected and says nothing."""

    code = "transfer_timeout"


class SourceUnavailable(TransferError):
    """The source cannot give a state at the step that was asked for."""

    code = "source_unavailable"


class ServerBusy(TransferError):
    code = "server_busy"


class CarrierUnavailable(TransferError):
    """The carrier asked for cannot reach this endpoint."""

    code = "carrier_unavailable"


def _tree(root: type[TransferError]) -> dict[str, type[TransferError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[TransferError]] = _tree(TransferError)


def from_code(code: str, message: str) -> TransferError:
    """The error a peer named; a code unknown here becomes a plain TransferError that quotes it."""
    kind = BY_CODE.get(code)
    return kind(message) if kind else TransferError(f"{code[:64]}: {message}")
