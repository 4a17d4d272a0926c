"""The carriers as one test sees them: a server, a way to it, and what may be wrong with that way."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from agent.protocol import Endpoint
from agent.transfer.carrier import Carrier
from agent.transfer.channel import Channel
from agent.transfer.fetch import fetch
from agent.transfer.memory_carrier import MemoryCarrier
from agent.transfer.plan import Chunk
from agent.transfer.same_host_carrier import SameHostCarrier
from agent.transfer.secrets import StreamIdentity, new_secret
from agent.transfer.server import DataServer
from agent.transfer.state import (
    ServeReport,
    SourceFactory,
    SourceState,
    TargetState,
    TransferReport,
)
from agent.transfer.tcp_carrier import TcpCarrier
from agent.transfer.tls import TlsIdentity

from .damage import Damage, Wire

WAYS = ("tcp", "tls", "same_host", "memory")
IDENTITY = StreamIdentity(
    job_id="llm",
    attempt=1,
    generation=6,
    rank=3,
    step=184,
    what="all",
    source_node="b",
    target_node="c",
)


@dataclass(frozen=True)
class Stream:
    """What both orders of one stream carry."""

    stream_id: str
    secret: str
    identity: StreamIdentity


class Way:
    """One carrier over one running server. ``ends`` collects how streams ended at the source."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._stack = ExitStack()
        self._numbers = iter(range(1_000_000))
        self._directory = directory
        tls = TlsIdentity.load_or_create(directory / "tls") if kind == "tls" else None
        self.server = DataServer(
            "127.0.0.1", unix_path=directory / "data.sock", tls=tls, stall_s=2.0
        )
        self.server.start()
        self.ends: list[ServeReport] = []
        self.released = 0

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            host="127.0.0.1",
            store_port=0,
            data_port=self.server.port,
            unix_path=self.server.unix_path,
            host_key="this machine",
            tls_fingerprint=self.server.tls_fingerprint,
        )

    def offer(
        self,
        source: SourceState | SourceFactory,
        *,
        lifetime_s: float = 60.0,
        **identity: Any,
    ) -> Stream:
        """Offer ``source`` under a fresh secret; identity fields may differ from IDENTITY."""
        stream = self.stream(**identity)
        self.offer_as(stream, source, lifetime_s=lifetime_s)
        return stream

    def stream(self, **identity: Any) -> Stream:
        name = f"stream-{next(self._numbers)}"
        return Stream(name, new_secret(), msgspec.structs.replace(IDENTITY, **identity))

    def offer_as(
        self, stream: Stream, source: SourceState | SourceFactory, *, lifetime_s: float = 60.0
    ) -> None:
        def make() -> SourceState:
            state = source if isinstance(source, SourceState) else source()
            return replace(state, release=self._count_release)

        self.server.offer(
            stream.stream_id,
            stream.secret,
            stream.identity,
            make,
            lifetime_s,
            on_end=self.ends.append,
        )

    def fetch(
        self, stream: Stream, target: TargetState, damage: Damage | None = None, **options: Any
    ) -> TransferReport:
        options.setdefault("patience_s", 2.0)
        options.setdefault("stall_s", 2.0)
        carrier = options.pop("carrier", None) or self.carrier(damage)
        return fetch(
            self.endpoint,
            stream.stream_id,
            stream.secret,
            stream.identity,
            target,
            carrier,
            **options,
        )

    def carrier(self, damage: Damage | None) -> Carrier:
        if self.kind == "memory":
            return _DamagedMemory(self, damage) if damage else MemoryCarrier(self.server)
        endpoint = self._damaged_endpoint(damage) if damage else self.endpoint
        if self.kind != "same_host":
            return TcpCarrier(endpoint)
        if damage is not None and damage.flip_at is not None:
            # Nothing of the state crosses this socket: the copy itself has to go wrong.
            return _FlippingCopy(self.endpoint)
        return SameHostCarrier(endpoint)

    def wire(self, damage: Damage) -> Wire:
        wire = Wire(self._connect_source, damage)
        self._stack.callback(wire.close)
        return wire

    def settle(self) -> None:
        """Close the wires and wait until the server has ended every connection."""
        self._stack.close()
        while self.server.connections:
            for thread in threading.enumerate():
                if thread.name == "yoco-data-stream":
                    thread.join(timeout=5)

    def close(self) -> None:
        self._stack.close()
        self.server.stop()

    def _count_release(self) -> None:
        self.released += 1

    def _damaged_endpoint(self, damage: Damage) -> Endpoint:
        if self.kind == "same_host":
            path = self._directory / f"damaged-{next(self._numbers)}.sock"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            listener.listen(16)
            changes: dict[str, Any] = {"unix_path": str(path)}
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            changes = {"data_port": listener.getsockname()[1]}
        self.wire(damage).listen(listener)
        return msgspec.structs.replace(self.endpoint, **changes)

    def _connect_source(self) -> socket.socket:
        if self.kind == "memory":
            return self.server.connect_here()
        if self.kind == "same_host":
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(self.server.unix_path)
            return connection
        return socket.create_connection(("127.0.0.1", self.server.port))


class _DamagedMemory(MemoryCarrier):
    def __init__(self, way: Way, damage: Damage) -> None:
        super().__init__(way.server)
        self._wire = way.wire(damage)

    def connect(self, stall_s: float) -> Channel:
        ours, theirs = socket.socketpair()
        self._wire.join_to(theirs)
        return Channel(ours, stall_s)


class _FlippingCopy(SameHostCarrier):
    def copy_chunk(self, chunk: Chunk, sources: dict[int, int], target: TargetState) -> bytes:
        super().copy_chunk(chunk, sources, target)
        with target.views(chunk) as views:
            views[0][len(views[0]) // 2] ^= 0x10
        return self.digest_chunk(chunk, target)
