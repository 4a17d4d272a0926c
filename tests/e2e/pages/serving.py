"""The whole ASGI application on a real socket, in a thread of the test, on the test's database."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


class Site:
    """A running server. ``url`` has no slash at its end."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        from yoco_platform.asgi import application
        from yoco_platform.lifespan import Lifespan

        application.application_mapping["lifespan"] = Lifespan()
        config = uvicorn.Config(
            application, host="127.0.0.1", port=self.port, lifespan="on", log_config=None,
            ws="websockets-sansio", ws_per_message_deflate=False, access_log=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        started = threading.Event()
        server = _Announcing(config, started)
        self._server = server
        self._thread = threading.Thread(target=server.run, daemon=True)
        self._thread.start()
        assert started.wait(20), "the server did not start"

    def stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(15)
        assert not self._thread.is_alive()


class _Announcing(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._announced = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announced.set()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving() -> Iterator[Site]:
    site = Site(free_port())
    site.start()
    try:
        yield site
    finally:
        site.stop()
