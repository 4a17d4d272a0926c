"""uvicorn with the settings that were measured to matter (docs/platform.md)."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn

KEEP_ALIVE_S = 75
"""Longer than an agent's heartbeat, or each beat would open a connection of its own."""


class Server(uvicorn.Server):
    """Ends with status 0 on SIGTERM and SIGINT instead of raising them again when all is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        taken = (signal.SIGINT, signal.SIGTERM)
        before = {one: signal.signal(one, self.handle_exit) for one in taken}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def open_sockets(host: str, port: int, descriptors: Sequence[int]) -> list[socket.socket]:
    """Listening sockets: those already open as ``descriptors``, else a new one on host and port.

    Raises ``OSError``: the port is taken, or a descriptor is no socket.
    """
    if descriptors:
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(2048)
    listener.set_inheritable(True)
    return [listener]


def serve(application: Any, sockets: list[socket.socket], *, trust_proxy: bool = False) -> bool:
    """Serve until SIGINT or SIGTERM. False: it could not start."""
    config = uvicorn.Config(
        application,
        lifespan="on",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=64 * 1024,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=3,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=trust_proxy,
        forwarded_allow_ips="*" if trust_proxy else None,
        backlog=2048,
    )
    server = Server(config)
    try:
        server.run(sockets=sockets)
    except SystemExit:
        # uvicorn's own way out of a failed start.
        return False
    return server.started
