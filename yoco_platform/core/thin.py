"""Routes of agents: one strict decode, no middleware, no serializer, the same errors as everywhere.

@agent_route(HeartbeatRequest)
def heartbeat(request: HttpRequest, message: HeartbeatRequest) -> HeartbeatReply: ...
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import msgspec
import structlog
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from agent import protocol

from .errors import DomainError, Malformed, TooLarge
from .problems import problem

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=protocol.Envelope)
View = Callable[..., HttpResponseBase]


class BadMessage(Malformed):
    code = "bad_message"
    status = 422


class ProtocolNotSpoken(Malformed):
    code = "protocol_not_spoken"
    status = 426


class MethodRefused(DomainError):
    code = "method_not_allowed"
    status = 405


class Internal(DomainError):
    code = "internal"
    status = 500


class _Version(msgspec.Struct):
    """The one field that every version of the protocol has."""

    protocol: int


_encode = msgspec.json.Encoder().encode
_version = msgspec.json.Decoder(_Version)
_ZERO = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
"""A zero character as JSON writes it; behind an odd number of backslashes it is only text."""


def agent_route(
    decoder_type: type[M],
) -> Callable[[Callable[..., msgspec.Struct | None]], View]:
    """Make a POST view of ``function(request, message, **url_arguments)``, which returns its reply.

    None is answered with ``Empty``. The body must be a ``decoder_type`` in a protocol we speak and at
    most ``BODY_BYTES_MAX`` long: ``too_large``, ``bad_message``, ``protocol_not_spoken`` otherwise.
    """
    decoder = msgspec.json.Decoder(decoder_type)

    def decorate(function: Callable[..., msgspec.Struct | None]) -> View:
        @wraps(function)
        def view(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
            try:
                if request.method != "POST":
                    raise MethodRefused("This route takes POST.")
                reply = function(request, decode(decoder, request.body), **arguments)
            except DomainError as error:
                return problem(error)
            except Exception:
                log.exception("agent_route_failed", route=function.__name__)
                return problem(Internal("Something failed on our side; it has been logged."))
            body = _encode(protocol.Empty() if reply is None else reply)
            return HttpResponse(body, content_type="application/json")

        view.csrf_exempt = True  # type: ignore[attr-defined]
        return view

    return decorate


def decode(decoder: msgspec.json.Decoder[M], body: bytes) -> M:
    """Decode one message strictly. Raises ``TooLarge``, ``ProtocolNotSpoken`` or ``BadMessage``.

    PostgreSQL holds no zero character, and an agent would send what we cannot store again for ever: it
    is replaced as unreadable bytes are.
    """
    if len(body) > protocol.BODY_BYTES_MAX:
        raise TooLarge(f"A body has at most {protocol.BODY_BYTES_MAX} bytes.", bytes=len(body))
    if b"\\u0000" in body:
        body = _ZERO.sub(rb"\1\\ufffd", body)
    try:
        message = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Another version may have other fields: say that first, for it is the cause.
        _refuse_other_protocols(_version_of(body))
        raise BadMessage(f"The message cannot be read: {error}") from error
    _refuse_other_protocols(message.protocol)
    return message


def _version_of(body: bytes) -> int:
    try:
        return _version.decode(body).protocol
    except (msgspec.DecodeError, UnicodeDecodeError):
        return protocol.PROTOCOL


def _refuse_other_protocols(version: int) -> None:
    if version not in protocol.SPOKEN:
        raise ProtocolNotSpoken(
            f"Protocol {version} is not spoken here.", spoken=list(protocol.SPOKEN), sent=version
        )
