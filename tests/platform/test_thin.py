"""Agent routes: a strict decode and clear refusals, through the real thin handler."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path

from agent import protocol
from yoco_platform.core.errors import Conflict
from yoco_platform.core.thin import agent_route, decode
from yoco_platform.doors import BodyLimit, HttpDoor, thin_application

LIMIT = 1024


@agent_route(protocol.OrderResult)
def echo(request: HttpRequest, message: protocol.OrderResult) -> protocol.EventsReply | None:
    if message.code == "raise":
        raise Conflict("Not now.", order=message.order_id)
    if message.code == "bug":
        raise ZeroDivisionError
    return None if message.ok else protocol.EventsReply(accepted_to=1, orders=[])


urlpatterns = [path("agent/v1/echo", echo)]


@pytest.fixture
def door(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("yoco_platform.doors._ThinRequest.urlconf", __name__)
    outside: Any = _outside
    return BodyLimit(HttpDoor("/agent/v1/", thin_application(), outside), LIMIT)


async def _outside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"outside"})


async def _post(
    door: Any, where: str, body: bytes, *, headers: Any = (), parts: int = 1, method: str = "POST"
) -> tuple[int, Any]:
    scope = {
        "type": "http", "method": method, "path": where, "query_string": b"",
        "headers": list(headers), "http_version": "1.1", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9),
    }  # fmt: skip
    communicator = ApplicationCommunicator(door, scope)
    size = max(1, len(body) // parts)
    chunks = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    for number, chunk in enumerate(chunks):
        more = number < len(chunks) - 1
        await communicator.send_input({"type": "http.request", "body": chunk, "more_body": more})
    start = await communicator.receive_output(5)
    answer = await communicator.receive_output(5)
    await communicator.wait(5)
    return start["status"], answer["body"]


def _message(**fields: Any) -> bytes:
    return json.dumps({"protocol": 1, "order_id": "o", "ok": True, **fields}).encode()


async def test_a_good_message_gets_its_reply(door: Any) -> None:
    status, body = await _post(door, "/agent/v1/echo", _message(ok=False))
    assert (status, json.loads(body)) == (200, {"protocol": 1, "accepted_to": 1, "orders": []})
    status, body = await _post(door, "/agent/v1/echo", _message())
    assert (status, json.loads(body)) == (200, {"protocol": 1})


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 422, "bad_message"),
        (b"\xff\xfe", 422, "bad_message"),
        (b"[]", 422, "bad_message"),
        (_message(colour="red"), 422, "bad_message"),
        (_message(ok="yes"), 422, "bad_message"),
        (_message(protocol=99), 426, "protocol_not_spoken"),
        (b'{"protocol": 99, "new_field": 1}', 426, "protocol_not_spoken"),
        (_message(code="raise"), 409, "conflict"),
        (_message(code="bug"), 500, "internal"),
    ],
)
async def test_a_bad_message_is_refused_with_its_code(
    door: Any, body: bytes, status: int, code: str
) -> None:
    answered, problem = await _post(door, "/agent/v1/echo", body)
    assert (answered, json.loads(problem)["code"]) == (status, code)


async def test_only_post_is_taken(door: Any) -> None:
    status, problem = await _post(door, "/agent/v1/echo", b"", method="GET")
    assert (status, json.loads(problem)["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize("parts", [1, 7])
async def test_a_body_over_the_limit_is_refused_whether_announced_or_not(
    door: Any, parts: int
) -> None:
    body = b" " * (LIMIT + 7)
    announced = [(b"content-length", str(len(body)).encode())]
    for headers in (announced, []):
        status, problem = await _post(door, "/agent/v1/echo", body, headers=headers, parts=parts)
        assert (status, json.loads(problem)["code"]) == (413, "too_large")


async def test_a_body_at_the_limit_is_taken(door: Any) -> None:
    body = _message()
    status, _ = await _post(door, "/agent/v1/echo", body + b" " * (LIMIT - len(body)))
    assert status == 200


async def test_other_paths_go_to_the_outside(door: Any) -> None:
    assert await _post(door, "/", b"") == (299, b"outside")


def loud_middleware(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=418)

    return middleware


async def test_the_dashboards_middleware_does_not_run_for_agents(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MIDDLEWARE = [f"{__name__}.loud_middleware"]
    settings.ROOT_URLCONF = __name__
    monkeypatch.setattr("yoco_platform.doors._ThinRequest.urlconf", __name__)
    door = HttpDoor("/agent/v1/", thin_application(), ASGIHandler())
    assert (await _post(door, "/agent/v1/echo", _message()))[0] == 200
    assert (await _post(door, "/elsewhere", b""))[0] == 418


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(rb"a\u0000b", "a\ufffdb", id="zero"),
        pytest.param(rb"\u0000\u0000", "\ufffd\ufffd", id="two in a row"),
        pytest.param(rb"\\u0000", "\\u0000", id="a backslash and text"),
        pytest.param(rb"\\\u0000", "\\\ufffd", id="a backslash and zero"),
        pytest.param(rb"\\\\u0000", "\\\\u0000", id="two backslashes and text"),
        pytest.param(rb"\n\u0000\\\u0000", "\n\ufffd\\\ufffd", id="mixed"),
    ],
)
def test_a_zero_character_is_read_as_unreadable(written: bytes, read: str) -> None:
    body = _message().replace(b'"order_id": "o"', b'"order_id": "' + written + b'"')
    decoder = msgspec.json.Decoder(protocol.OrderResult)

    assert decode(decoder, body).order_id == read
