"""Headers that every page carries: nothing inline, nothing foreign, nothing cached that is private."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

PERMISSIONS_POLICY = (
    "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), "
    "microphone=(), midi=(), payment=(), usb=()"
)


class SecurityHeaders:
    """Middleware, sync or async as its neighbour is, so that it costs no thread hop."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], object]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> object:
        response = self.get_response(request)
        if isinstance(response, Awaitable):
            return self._later(request, response)
        assert isinstance(response, HttpResponseBase)
        return _with_headers(request, response)

    async def _later(
        self, request: HttpRequest, response: Awaitable[HttpResponseBase]
    ) -> HttpResponseBase:
        return _with_headers(request, await response)


def _with_headers(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    response.headers.setdefault("Content-Security-Policy", settings.CONTENT_SECURITY_POLICY)
    response.headers.setdefault("Permissions-Policy", PERMISSIONS_POLICY)
    kind = response.headers.get("Content-Type", "")
    if kind.startswith(("text/html", "application/json")) and not request.path.startswith(
        settings.STATIC_URL
    ):
        response.headers.setdefault("Cache-Control", "no-store")
    return response
