"""Who asks, and what they may: the role table, the viewer every selector takes, token hashes."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import Forbidden, PersonNeeded, Unauthenticated
from .models import ApiToken, User
from .roles import (
    CUSTOMER_ROLES,
    FLEET_WIDE,
    SHARED,
    TABLE,
    TOKEN_ROLES,
    Permission,
    Role,
)

__all__ = [
    "CUSTOMER_ROLES",
    "SYSTEM",
    "TABLE",
    "TOKEN_ROLES",
    "Permission",
    "Role",
    "Viewer",
    "hash_token",
    "may",
    "new_token",
    "require",
    "require_person",
    "viewer_of",
    "viewer_of_token",
    "viewer_of_user",
]


@dataclass(frozen=True)
class Viewer:
    """Whoever asks. ``customer_id`` / ``cluster_id`` None: not confined to one."""

    name: str
    role: Role
    customer_id: int | None = None
    cluster_id: int | None = None
    user_id: int | None = None
    token_id: int | None = None

    @property
    def key(self) -> str:
        """Who this is, for comparing. ``name`` is for reading: two tokens may have the same one."""
        if self.token_id is not None:
            return f"token:{self.token_id}"
        return f"user:{self.user_id}" if self.user_id is not None else f"name:{self.name}"


SYSTEM = Viewer(name="platform", role=Role.AUDITOR)
"""The platform itself, reading for its own passes; it sees every row and presents no credentials."""


def may(viewer: Viewer, permission: Permission) -> bool:
    """The role has it, and whoever is bound to a customer or a cluster reaches no further than that."""
    return permission in TABLE[viewer.role] and not _beyond(viewer, permission)


def require(viewer: Viewer, permission: Permission) -> None:
    """Raises ``Forbidden`` unless ``may``."""
    bound = _beyond(viewer, permission)
    if bound and permission in TABLE[viewer.role]:
        raise Forbidden(
            f"This reaches beyond the {bound} you are bound to.", permission=permission.value
        )
    if not may(viewer, permission):
        raise Forbidden(
            f"The role {viewer.role.value} may not do this.", permission=permission.value
        )


def require_person(viewer: Viewer) -> None:
    """Raises ``PersonNeeded`` unless somebody who has signed in asks."""
    if viewer.user_id is None:
        raise PersonNeeded("This cannot be undone: only a person who has signed in may do it.")


def _beyond(viewer: Viewer, permission: Permission) -> str:
    """What binds the viewer so that the permission does not hold; empty when nothing does."""
    if viewer.customer_id is not None and permission in SHARED:
        return "customer"
    return "cluster" if viewer.cluster_id is not None and permission in FLEET_WIDE else ""


def viewer_of_user(user: User) -> Viewer:
    return Viewer(
        name=user.get_username(),
        role=Role(user.role),
        customer_id=user.customer_id,
        cluster_id=user.cluster_id,
        user_id=user.pk,
    )


def viewer_of_token(token: ApiToken) -> Viewer:
    return Viewer(
        name=f"token:{token.name}",
        role=Role(token.role),
        customer_id=token.customer_id,
        cluster_id=token.cluster_id,
        token_id=token.pk,
    )


def viewer_of(source: Any) -> Viewer:  # a request of Django or DRF, or an ASGI scope
    """The viewer behind a request or a websocket scope. Raises ``Unauthenticated``."""
    if isinstance(source, Mapping):
        user = source.get("user")
    else:
        token = getattr(source, "auth", None)
        if isinstance(token, ApiToken):
            return viewer_of_token(token)
        user = getattr(source, "user", None)
    if isinstance(user, User) and user.is_active:
        return viewer_of_user(user)
    raise Unauthenticated("Sign in, or present a token.")


def hash_token(token: str) -> str:
    """SHA-256 in hex. Tokens carry 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token(prefix: str) -> str:
    """A new secret such as ``yoco_agent_…``; shown once, stored only as ``hash_token`` of it."""
    return f"yoco_{prefix}_{secrets.token_urlsafe(32)}"
