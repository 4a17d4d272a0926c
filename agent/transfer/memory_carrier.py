"""State inside one process, over socket pairs: the streams' code without a network, for tests."""

from __future__ import annotations

from .carrier import Landed, Mode, Move, receive_streams
from .channel import Channel
from .server import DataServer


class MemoryCarrier:
    name = "memory"
    tls_fingerprint = ""

    def __init__(self, server: DataServer) -> None:
        self._server = server

    def connect(self, stall_s: float) -> Channel:
        return Channel(self._server.connect_here(), stall_s)

    def mode(self, move: Move) -> Mode:
        return "streams"

    def move(self, move: Move) -> Landed:
        return receive_streams(self, move)
