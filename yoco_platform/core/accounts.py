"""People and sites of a fresh platform: the first administrator and the default cluster."""

from __future__ import annotations

import secrets

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from .audit import audit
from .auth import SYSTEM, Role
from .errors import Conflict, Invalid
from .models import Cluster, User

DEFAULT_CLUSTER = "default"


@transaction.atomic
def admin_create(*, name: str, password: str | None = None) -> tuple[User, str]:
    """Make an administrator and return it with its password, random unless given.

    Raises ``Conflict`` when the name is taken, ``Invalid`` when the password is too weak.
    """
    if User.objects.filter(username=name).exists():
        raise Conflict(f"There is a user {name} already.")
    if password is None:
        password = secrets.token_urlsafe(15)
    else:
        try:
            validate_password(password)
        except ValidationError as error:
            raise Invalid(" ".join(error.messages)) from error
    user = User.objects.create_user(
        name, password=password, role=Role.ADMIN, is_staff=True, is_superuser=True
    )
    audit(SYSTEM, "user.create", f"user:{user.pk}", {"name": name, "role": Role.ADMIN.value})
    return user, password


@transaction.atomic
def first_admin_ensure() -> tuple[User, str] | None:
    """On a platform without an administrator make one named admin; None when there is one."""
    if User.objects.filter(role=Role.ADMIN).exists():
        return None
    return admin_create(name="admin")


def default_cluster_ensure() -> Cluster:
    cluster, _ = Cluster.objects.get_or_create(slug=DEFAULT_CLUSTER, defaults={"name": "Default"})
    return cluster
