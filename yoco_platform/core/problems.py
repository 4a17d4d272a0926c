"""The one exit of errors: a DomainError as problem+json, the same from every door."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.http import JsonResponse

from .errors import DomainError

CONTENT_TYPE = "application/problem+json"


def problem_body(error: DomainError) -> dict[str, Any]:
    """RFC 9457: ``type``, ``title``, ``status``, ``detail``, plus ``code`` and ``details``."""
    return {
        "type": f"urn:yoco:error:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "code": error.code,
        "detail": _encodable(error.message),
        "details": _encodable(error.details),
    }


def problem(error: DomainError) -> JsonResponse:
    """The response that says why a request was refused."""
    response = JsonResponse(problem_body(error), status=error.status, content_type=CONTENT_TYPE)
    if error.status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = "Bearer"
    response["Cache-Control"] = "no-store"
    return response


def _encodable(value: Any) -> Any:
    """A refusal may say back what it was given: halves of surrogate pairs have no UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(one) for one in value]
    return value
