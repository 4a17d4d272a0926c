"""Machine tokens: how they are read from a request, checked, made and revoked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from . import clock
from .audit import audit
from .auth import Role, Viewer, hash_token, new_token, viewer_of_token
from .errors import Invalid, InvalidField, Unauthenticated
from .models import ApiToken, Cluster, Customer

TOKEN_CHARACTERS_MAX = 200
VALID_DAYS_MAX = 36_500


def bearer_token(request: HttpRequest | Request) -> str:
    """The token of ``Authorization: Bearer …``. Raises ``Unauthenticated`` without a usable one."""
    header: str = request.META.get("HTTP_AUTHORIZATION", "")
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not 0 < len(token) <= TOKEN_CHARACTERS_MAX:
        raise Unauthenticated("Send the header Authorization: Bearer <token>.")
    return token


class TokenPrincipal:
    """Stands where a user would: a machine with a token."""

    is_authenticated = True
    is_anonymous = False
    is_active = True
    pk = None

    def __init__(self, token: ApiToken) -> None:
        self.token = token

    def get_username(self) -> str:
        return viewer_of_token(self.token).name


class TokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer`` with an ApiToken. Never from a query string or a cookie."""

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        if not request.META.get("HTTP_AUTHORIZATION"):
            return None
        token = token_for(bearer_token(request))
        return TokenPrincipal(token), token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def token_for(secret: str) -> ApiToken:
    """The live token with this secret. Raises ``Unauthenticated``: unknown, expired or revoked."""
    token = (
        ApiToken.objects.select_related("customer", "cluster")
        .filter(token_hash=hash_token(secret))
        .first()
    )
    if token is None or token.revoked_at is not None:
        raise Unauthenticated("This token is not known here, or was revoked.")
    if token.expires_at is not None and token.expires_at <= clock.now():
        raise Unauthenticated("This token has expired.", expired_at=token.expires_at.isoformat())
    return token


@transaction.atomic
def token_create(
    *,
    viewer: Viewer,
    name: str,
    role: Role,
    cluster: Cluster | None = None,
    customer: Customer | None = None,
    valid_days: int | None = None,
) -> tuple[ApiToken, str]:
    """Make a token and return it with its secret, which is never to be seen again.

    ``valid_days`` None: until it is revoked. Raises ``Invalid`` for a role no token may hold or a
    scheduler without its cluster, ``InvalidField`` for a time that is none.
    """
    if role != Role.SCHEDULER:
        raise Invalid("Only schedulers get API tokens; agents enrol.", role=role.value)
    if cluster is None:
        raise Invalid("A scheduler's token belongs to one cluster: name it.")
    if valid_days is not None and not 1 <= valid_days <= VALID_DAYS_MAX:
        raise InvalidField(
            f"valid_days: a token is valid for 1 to {VALID_DAYS_MAX} days", fields=["valid_days"]
        )
    secret = new_token("scheduler")
    token = ApiToken.objects.create(
        name=name,
        role=role,
        token_hash=hash_token(secret),
        cluster=cluster,
        customer=customer,
        created_by=viewer.name,
        expires_at=clock.now() + timedelta(days=valid_days) if valid_days is not None else None,
    )
    audit(viewer, "token.create", f"token:{token.pk}", {"name": name, "role": role.value})
    return token, secret


@transaction.atomic
def token_revoke(*, viewer: Viewer, token: ApiToken) -> None:
    """Revoke a token; it is refused from the next request on."""
    if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=clock.now()):
        audit(viewer, "token.revoke", f"token:{token.pk}", {"name": token.name})
