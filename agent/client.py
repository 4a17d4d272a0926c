"""The agent's side of HTTP: one keep-alive client, a limit on every call, errors by code."""

from __future__ import annotations

from typing import TypeVar

import httpx
import msgspec

from .errors import PlatformAway, PlatformRefused
from .protocol import (
    Empty,
    EnrollReply,
    EnrollRequest,
    Envelope,
    EventBatch,
    EventsReply,
    HeartbeatReply,
    HeartbeatRequest,
    OrderResult,
)

_Reply = TypeVar("_Reply", bound=Envelope)
REPLY_BYTES_MAX = 64 * 1024 * 1024


class _Problem(msgspec.Struct):
    """The parts of a problem+json body that matter here."""

    code: str = "platform_refused"
    detail: str = ""
    title: str = ""


class PlatformClient:
    """Calls of design.md §8. Each raises PlatformRefused (the platform said no) or PlatformAway."""

    def __init__(self, platform: str, token: str, timeout_s: float = 10.0) -> None:
        self.platform = platform.rstrip("/")
        limits = httpx.Limits(max_connections=8, max_keepalive_connections=4, keepalive_expiry=60.0)
        # trust_env off: a proxy meant for the web must not carry orders and tokens.
        self._http = httpx.AsyncClient(
            base_url=self.platform,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 3.0)),
            limits=limits,
            trust_env=False,
        )

    async def enroll(self, request: EnrollRequest) -> EnrollReply:
        return await self._post("/agent/v1/enroll", request, EnrollReply)

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        return await self._post("/agent/v1/heartbeat", request, HeartbeatReply)

    async def events(self, batch: EventBatch) -> EventsReply:
        return await self._post("/agent/v1/events", batch, EventsReply)

    async def order_result(self, result: OrderResult) -> Empty:
        path = f"/agent/v1/orders/{result.order_id}/result"
        return await self._post(path, result, Empty)

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, body: Envelope, reply: type[_Reply]) -> _Reply:
        try:
            response = await self._http.post(path, content=msgspec.json.encode(body))
        except (httpx.HTTPError, OSError) as error:
            words = str(error) or type(error).__name__
            raise PlatformAway(f"{self.platform}{path}: {words}") from error
        content = response.content
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise PlatformAway(f"{self.platform}{path}: status {response.status_code}")
        if response.status_code >= 300:
            raise _refusal(response.status_code, content)
        try:
            return msgspec.json.decode(content, type=reply)
        except msgspec.DecodeError as error:
            raise PlatformAway(f"{self.platform}{path}: not our protocol: {error}") from error


def _refusal(status: int, content: bytes) -> PlatformRefused:
    try:
        problem = msgspec.json.decode(content, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem(code=f"http_{status}")
    words = problem.detail or problem.title or f"status {status}"
    return PlatformRefused(words, problem.code, status)
