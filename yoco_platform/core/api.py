"""The REST door: views closed by default, strict serializers, one shape of errors, repeatable POSTs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar, cast

import structlog
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.http import Http404
from django.http.response import HttpResponseBase
from rest_framework import exceptions, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from . import errors
from .auth import Permission, Viewer, viewer_of
from .models import IdempotencyKey
from .permissions import Closed
from .problems import CONTENT_TYPE, problem, problem_body

__all__ = [
    "ApiView",
    "Closed",
    "StrictSerializer",
    "TransitionOutput",
    "exception_handler",
    "idempotent",
    "problem",
]

log = structlog.get_logger(__name__)


class ApiView(APIView):
    """One class per action. Declare ``permission``, or ``permissions`` by method.

    Example: ``permissions = {"GET": Permission.JOB_READ, "POST": Permission.JOB_SUBMIT}``.
    """

    permission: ClassVar[Permission | None] = None
    permissions: ClassVar[Mapping[str, Permission]] = {}
    needs_person: ClassVar[bool] = False
    """What cannot be undone: no token may do it, whatever its role."""
    permission_classes = [Closed]

    @property
    def viewer(self) -> Viewer:
        """Who asks. Raises ``Unauthenticated``."""
        return viewer_of(self.request)


class StrictSerializer(serializers.Serializer[Any]):
    """What a request may say. Read it by ``values``; a field nobody knows is refused by name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = sorted(set(map(str, data)) - set(self.fields))
            if unknown:
                raise errors.UnknownField(f"{unknown[0]} is not known here", fields=unknown)
        return super().to_internal_value(data)

    @property
    def values(self) -> dict[str, Any]:
        """The checked values. Raises UnknownField, InvalidField; both name the first field that is wrong."""
        if not isinstance(self.initial_data, Mapping):
            raise errors.InvalidField("the body must be a JSON object")
        if not self.is_valid():
            field, problems = next(iter(self.errors.items()))
            raise errors.InvalidField(f"{field}: {_first(problems)}", fields=self.errors)
        return dict(self.validated_data)


class TransitionOutput(serializers.Serializer[Any]):
    """One step of anything that has states."""

    from_state = serializers.CharField()
    to_state = serializers.CharField()
    reason = serializers.CharField()
    actor = serializers.CharField(default="platform", help_text="platform where nobody else acted")
    at = serializers.DateTimeField()


def _first(problems: Any) -> str:
    """The first sentence of whatever DRF nested."""
    while isinstance(problems, (list, dict)) and problems:
        problems = next(iter(problems.values())) if isinstance(problems, dict) else problems[0]
    return str(problems)


def exception_handler(error: Exception, context: Mapping[str, Any]) -> HttpResponseBase | None:
    """DRF's way out: every refusal becomes one problem+json; a bug is logged and says nothing."""
    domain = as_domain_error(error)
    if domain is None:
        log.exception("api_failed", view=type(context.get("view")).__name__)
        domain = _Internal("Something failed on our side; it has been logged.")
    response = Response(problem_body(domain), status=domain.status, content_type=CONTENT_TYPE)
    response["Cache-Control"] = "no-store"
    if domain.status == status.HTTP_401_UNAUTHORIZED:
        response["WWW-Authenticate"] = "Bearer"
    wait = getattr(error, "wait", None)
    if wait is not None:
        response["Retry-After"] = str(int(wait) + 1)
    return response


class _Internal(errors.DomainError):
    code = "internal"
    status = 500


class MethodRefused(errors.DomainError):
    code = "method_not_allowed"
    status = 405


class NotAcceptable(errors.DomainError):
    code = "not_acceptable"
    status = 406


class UnsupportedMediaType(errors.DomainError):
    code = "unsupported_media_type"
    status = 415


_OF_DRF: dict[type[Exception], type[errors.DomainError]] = {
    exceptions.ValidationError: errors.Invalid,
    exceptions.ParseError: errors.Malformed,
    exceptions.AuthenticationFailed: errors.Unauthenticated,
    exceptions.NotAuthenticated: errors.Unauthenticated,
    exceptions.PermissionDenied: errors.Forbidden,
    exceptions.NotFound: errors.NotFound,
    exceptions.MethodNotAllowed: MethodRefused,
    exceptions.NotAcceptable: NotAcceptable,
    exceptions.UnsupportedMediaType: UnsupportedMediaType,
    exceptions.Throttled: errors.TooMany,
}


def as_domain_error(error: Exception) -> errors.DomainError | None:
    """What DRF or Django raised, in our own tree. None: nobody foresaw it."""
    if isinstance(error, errors.DomainError):
        return error
    if isinstance(error, Http404):
        return errors.NotFound("There is nothing here by this name.")
    if isinstance(error, PermissionDenied):
        return errors.Forbidden("You may not do this.")
    if isinstance(error, exceptions.ValidationError):
        fields = error.detail if isinstance(error.detail, dict) else {"non_field": error.detail}
        return errors.Invalid(
            "Some fields are wrong: " + ", ".join(map(str, fields)), fields=fields
        )
    for kind, ours in _OF_DRF.items():
        if isinstance(error, kind):
            return ours(str(cast(exceptions.APIException, error).detail))
    return None


class IdempotencyKeyReused(errors.Conflict):
    code = "idempotency_key_reused"


_Method = Callable[..., Response]


def idempotent(method: _Method) -> _Method:
    """For a POST method of an ``ApiView``: the same ``Idempotency-Key`` of one caller is done once.

    A repeat gets the first answer with ``Idempotency-Replayed: true``; the same key with another body
    is refused as ``idempotency_key_reused``. A refused request leaves no trace and may be repeated.
    The work and the record of it are one transaction. The header may be left out.
    """

    @wraps(method)
    def once(view: ApiView, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get("Idempotency-Key", "")
        if not key:
            with transaction.atomic():
                return method(view, request, *args, **kwargs)
        if len(key) > 200:
            raise errors.Invalid("An Idempotency-Key has at most 200 characters.")
        actor = view.viewer.key
        digest = hashlib.sha256(
            b"\0".join([(request.method or "").encode(), request.path.encode(), request.body])
        ).hexdigest()
        replayed = _answer_given(actor, key, digest)
        if replayed is not None:
            return replayed
        try:
            with transaction.atomic():
                record = _claim(actor, key, digest)
                response = method(view, request, *args, **kwargs)
                record.status, record.body = response.status_code, response.data
                record.save(update_fields=["status", "body"])
                return response
        except _AlreadyClaimed:
            # Whoever claimed it first has committed: the insert waited for that.
            replayed = _answer_given(actor, key, digest)
            if replayed is None:
                raise errors.Conflict("The first request with this key is not over yet.") from None
            return replayed

    return once


class _AlreadyClaimed(Exception):
    pass


def _claim(actor: str, key: str, digest: str) -> IdempotencyKey:
    try:
        with transaction.atomic():
            return IdempotencyKey.objects.create(actor=actor, key=key, request_hash=digest)
    except IntegrityError as error:
        raise _AlreadyClaimed from error


def _answer_given(actor: str, key: str, digest: str) -> Response | None:
    record = IdempotencyKey.objects.filter(actor=actor, key=key).first()
    if record is None:
        return None
    if record.request_hash != digest:
        raise IdempotencyKeyReused("This Idempotency-Key was used for another request.", key=key)
    return Response(record.body, status=record.status, headers={"Idempotency-Replayed": "true"})
