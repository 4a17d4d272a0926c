"""State over TCP: several connections, TLS off loopback."""

from __future__ import annotations

import socket
from typing import Literal

from ..protocol import Endpoint
from .carrier import Landed, Mode, Move, receive_streams
from .channel import Channel
from .errors import PeerUnreachable, TlsRequired
from .tls import connect_pinned, is_loopback


class TcpCarrier:
    """Reaches an agent's ``host`` and ``data_port``.

    ``tls`` ``off`` allows plain streams off loopback, on a network that is closed to others; an
    endpoint that names a certificate is spoken to with TLS all the same. ``bind_host`` chooses the
    interface.
    """

    name = "tcp"

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        tls: Literal["required", "off"] = "required",
        bind_host: str = "",
    ) -> None:
        self.tls_fingerprint = endpoint.tls_fingerprint
        if not self.tls_fingerprint and tls == "required" and not is_loopback(endpoint.host):
            raise TlsRequired(f"{endpoint.host} names no certificate and is not on loopback")
        self._address = (endpoint.host, endpoint.data_port)
        self._source = (bind_host, 0) if bind_host else None

    def connect(self, stall_s: float) -> Channel:
        try:
            raw = socket.create_connection(self._address, stall_s, self._source)
        except OSError as error:
            host, port = self._address
            raise PeerUnreachable(f"{host}:{port}: {error}") from error
        if not self.tls_fingerprint:
            return Channel(raw, stall_s)
        return Channel(connect_pinned(raw, self.tls_fingerprint), stall_s)

    def mode(self, move: Move) -> Mode:
        return "streams"

    def move(self, move: Move) -> Landed:
        return receive_streams(self, move)
