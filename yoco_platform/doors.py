"""Small ASGI pieces between the server and Django."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from channels.exceptions import DenyConnection
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.exception import convert_exception_to_response

from yoco_platform.core.errors import TooLarge
from yoco_platform.core.problems import CONTENT_TYPE, problem_body

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class HttpDoor:
    """Requests below ``prefix`` go to ``inside``, all others to ``outside``."""

    def __init__(self, prefix: str, inside: Application, outside: Application) -> None:
        self.prefix = prefix
        self.inside = inside
        self.outside = outside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self.inside if scope["path"].startswith(self.prefix) else self.outside
        await door(scope, receive, send)


class SocketDoor(HttpDoor):
    """The same for websockets; a path that nobody serves is refused, not an error of ours."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (ValueError, DenyConnection) as error:
            if isinstance(error, ValueError) and "No route found" not in str(error):
                raise
            await send({"type": "websocket.close", "code": 4404})


class _Overflow(Exception):
    """More body arrived than is allowed."""


class BodyLimit:
    """Refuses bodies over ``bytes_max``, announced or not, before anybody holds them in memory."""

    def __init__(self, application: Application, bytes_max: int) -> None:
        self.application = application
        self.bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.bytes_max:
            await self._refuse(send)
            return
        taken = 0

        async def limited() -> MutableMapping[str, Any]:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.bytes_max:
                raise _Overflow
            return message

        try:
            await self.application(scope, limited, send)
        except _Overflow:
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        error = TooLarge(f"A body has at most {self.bytes_max} bytes.", bytes_max=self.bytes_max)
        body = json.dumps(problem_body(error)).encode()
        headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _ThinRequest(ASGIRequest):
    urlconf = settings.AGENT_URLCONF


class ThinHandler(ASGIHandler):
    """Django without the dashboard's middleware: each would cost two thread hops a request."""

    request_class = _ThinRequest

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(
            self._get_response_async  # type: ignore[attr-defined]  # not in the stubs
        )


def thin_application() -> Application:
    handler: Any = ThinHandler()  # its stubs narrow the ASGI types
    application: Application = handler
    return application
