"""What starts and stops with the web server: its loop is named, the clock runs, embedded Celery too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from yoco_platform.core import realtime

Start = Callable[[], Callable[[], None]]
"""Starts something and returns what stops it. Both may block."""


class Lifespan:
    """ASGI lifespan application over a list of things to start, stopped in reverse order."""

    def __init__(self, *starts: Start) -> None:
        self.starts = list(starts)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        await receive()
        stops: list[Callable[[], None]] = []
        realtime.bind_loop(asyncio.get_running_loop())
        try:
            for start in self.starts:
                stops.append(await asyncio.to_thread(start))
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for stop in reversed(stops):
            await asyncio.to_thread(stop)
        realtime.bind_loop(None)
        await send({"type": "lifespan.shutdown.complete"})
