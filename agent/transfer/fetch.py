"""The target's side: open one stream, take the state, and say what was proven.

Nothing is usable unless ``fetch`` returns: on any error the target's memory may be half written,
and a standby in that memory waits for another source or is thrown away.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Literal

from ..protocol import Endpoint
from . import handshake, wire
from .carrier import Carrier, Landed, Move
from .channel import Channel
from .digest import bytes_digest, identity_digest, state_digest
from .errors import (
    CarrierUnavailable,
    ManifestInvalid,
    PeerLost,
    PeerUnreachable,
    ProtocolViolation,
    SourceUnavailable,
    TransferCorrupt,
    TransferError,
    TransferTimeout,
)
from .handshake import Pass
from .manifest import MANIFEST_BYTES_MAX, Manifest
from .plan import Plan, make_plan
from .same_host_carrier import SameHostCarrier
from .secrets import StreamIdentity
from .state import BLOBS_OF, BlobName, TargetState, TransferReport
from .tcp_carrier import TcpCarrier

__all__ = ["StreamIdentity", "TargetState", "TransferReport", "fetch"]

BYTES_PER_STREAM = 32 * 1024 * 1024
STREAMS_MAX = 4


def fetch(
    endpoint: Endpoint,
    stream_id: str,
    secret: str,
    identity: StreamIdentity,
    target: TargetState,
    carrier: Literal["auto", "tcp", "same_host"] | Carrier = "auto",
    own_host_key: str = "",
    *,
    take: bool = False,
    tls: Literal["required", "off"] = "required",
    bind_host: str = "",
    streams: int = 0,
    patience_s: float = 30.0,
    stall_s: float = 10.0,
) -> TransferReport:
    """Bring one rank's state into ``target``. Blocks; call it in a thread.

    ``auto`` takes the same-host carrier where both agents have one host key. ``take``: on the same
    host, take a dead owner's memory instead of copying it (``taken_fds``). ``patience_s``: how long
    the source may need to bring the state to rest; ``stall_s``: how long no byte may move.
    ``streams`` 0: by size. Raises TransferError; its ``code`` says what went wrong.
    """
    began_at = time.time()
    if not take and identity.what != "private":
        # Before the source waits for us: mapping a large arena takes seconds.
        target.prepare()
    chosen, control = _connect(endpoint, carrier, own_host_key, tls, bind_host, stall_s)
    try:
        control.limit_waits(patience_s + stall_s)
        held = handshake.open_control(
            control, stream_id, secret, identity, chosen.tls_fingerprint, patience_s
        )
        return _receive(chosen, control, held, target, take, streams, stall_s, began_at)
    except (PeerLost, TransferTimeout) as error:
        raise control.last_word(error) from error
    except TransferError as error:
        control.refuse(error)
        raise
    finally:
        control.close()


def _connect(
    endpoint: Endpoint,
    carrier: Literal["auto", "tcp", "same_host"] | Carrier,
    own_host_key: str,
    tls: Literal["required", "off"],
    bind_host: str,
    stall_s: float,
) -> tuple[Carrier, Channel]:
    """The carrier to use and its first connection."""
    if not isinstance(carrier, str):
        return carrier, carrier.connect(stall_s)
    shared = bool(endpoint.unix_path and own_host_key and own_host_key == endpoint.host_key)
    if carrier == "same_host" and not endpoint.unix_path:
        raise CarrierUnavailable("the endpoint names no unix socket")
    if carrier == "same_host" or (carrier == "auto" and shared):
        same_host = SameHostCarrier(endpoint)
        try:
            return same_host, same_host.connect(stall_s)
        except PeerUnreachable:
            # One machine, but not one file system: containers that share a network namespace.
            if carrier == "same_host":
                raise
    tcp = TcpCarrier(endpoint, tls=tls, bind_host=bind_host)
    return tcp, tcp.connect(stall_s)


def _receive(
    carrier: Carrier,
    control: Channel,
    held: Pass,
    target: TargetState,
    take: bool,
    streams: int,
    stall_s: float,
    began_at: float,
) -> TransferReport:
    offered = control.receive(wire.Offered)
    control.limit_waits(stall_s)
    plan, schema_hash, manifest = _agree(control, held, offered, target)
    wanted = streams or max(1, min(STREAMS_MAX, plan.bytes // BYTES_PER_STREAM))
    count = min(wanted, wire.STREAMS_MAX, len(plan.chunks))
    move = Move(control, held, plan, target, count, stall_s, take and offered.takeable)
    mode = carrier.mode(move)
    if mode != "take" and plan.chunks:
        target.prepare()
    control.send(wire.Ready(mode=mode, streams=count))
    control.receive(wire.Sending)
    blobs, heads = _receive_blobs(control, held, offered)
    landed = carrier.move(move)
    try:
        digests = landed.digests
        if mode == "take":
            digests = [_taken_digest(manifest, plan, landed)]
        digest = state_digest(schema_hash, digests, heads)
        said = control.receive(wire.SourceDigest)
        handshake.check_digest_code(held, said.digest, said.code)
        if said.digest != digest:
            raise TransferCorrupt(f"landed as {digest}, the source sent {said.digest}")
        control.send(wire.Verdict(digest=digest))
    except BaseException:
        _close_all(landed)
        raise
    moved = sum(len(data) for _, data in blobs.values()) + (0 if mode == "take" else plan.bytes)
    return TransferReport(
        bytes_moved=moved,
        source_digest=said.digest,
        target_digest=digest,
        carrier="same_host_take" if mode == "take" else carrier.name,
        began_at=began_at,
        ended_at=time.time(),
        proof="identity" if mode == "take" else "digest",
        blobs=blobs,
        taken_fds=landed.taken_fds,
        interface=control.interface,
    )


def _agree(
    control: Channel, held: Pass, offered: wire.Offered, target: TargetState
) -> tuple[Plan, str, Manifest]:
    """The plan both sides will follow. Raises ManifestInvalid, SchemaMismatch."""
    if not 0 <= offered.manifest_bytes <= MANIFEST_BYTES_MAX:
        raise ManifestInvalid(f"a manifest of {offered.manifest_bytes} bytes was announced")
    source = Manifest.decode(control.receive_bytes(offered.manifest_bytes))
    if held.identity.what == "private":
        if source.storages or source.tensors:
            raise ManifestInvalid("tensors in a stream of private state")
        return Plan((), 0), source.schema_hash, source
    return make_plan(source, target.manifest), source.schema_hash, source


def _receive_blobs(
    control: Channel, held: Pass, offered: wire.Offered
) -> tuple[dict[BlobName, tuple[int, bytes]], dict[str, tuple[int, int, bytes]]]:
    names: dict[str, BlobName] = {name: name for name in BLOBS_OF[held.identity.what]}
    blobs: dict[BlobName, tuple[int, bytes]] = {}
    heads: dict[str, tuple[int, int, bytes]] = {}
    for head in offered.blobs:
        if head.name not in names or names[head.name] in blobs:
            raise ProtocolViolation(f"blob {head.name[:64]!r} does not belong here, or not twice")
        if not 0 <= head.size <= wire.BLOB_BYTES_MAX:
            raise ProtocolViolation(f"a blob of {head.size} bytes was announced")
        data = bytes(control.receive_bytes(head.size))
        digest = bytes_digest(data)
        if digest != head.digest:
            raise TransferCorrupt(f"blob {head.name} landed as {digest.hex()}")
        blobs[names[head.name]] = (head.step, data)
        heads[head.name] = (head.step, head.size, digest)
    return blobs, heads


def _taken_digest(source: Manifest, plan: Plan, landed: Landed) -> bytes:
    """Which memory we now hold, in the source's numbering."""
    targets = {piece.source_id: piece.target_id for chunk in plan.chunks for piece in chunk.pieces}
    held = {each: landed.taken_fds[targets[each]] for each in targets}
    try:
        return identity_digest(source, held)
    except KeyError as error:
        raise SourceUnavailable(f"storage {error} was not handed over") from error


def _close_all(landed: Landed) -> None:
    for fd in landed.taken_fds.values():
        with suppress(OSError):
            os.close(fd)
