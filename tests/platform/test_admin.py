"""Django's admin is for administrators, writes what it does into the audit log, and edits no record."""

from __future__ import annotations

import pytest
from django.test import Client

from yoco_platform.core.accounts import admin_create
from yoco_platform.core.audit import audit
from yoco_platform.core.auth import SYSTEM, Role
from yoco_platform.core.models import ApiToken, AuditEntry, Customer, User

from .cast import PASSWORD, make_cluster, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def root() -> Client:
    user, _ = admin_create(name="root")
    client = Client()
    client.force_login(user)
    return client


def test_an_operator_is_sent_away() -> None:
    make_user("alice", Role.OPERATOR)
    client = Client()
    assert client.login(username="alice", password=PASSWORD)
    assert client.get("/admin/core/user/").status_code == 302


def test_every_list_opens(root: Client) -> None:
    audit(SYSTEM, "x", "y")
    tables = ["user", "customer", "cluster", "apitoken", "auditentry"]
    for name in [*tables, "webhookendpoint", "webhookdelivery"]:
        assert root.get(f"/admin/core/{name}/").status_code == 200, name


def test_a_person_made_here_has_a_role_and_an_audit_entry(root: Client) -> None:
    form = {"username": "fin", "role": "finance", "password1": PASSWORD, "password2": PASSWORD,
            "usable_password": "true", "customer": "", "cluster": ""}  # fmt: skip
    answer = root.post("/admin/core/user/add/", form)
    assert answer.status_code == 302, answer.content[:3000]
    assert User.objects.get(username="fin").role == Role.FINANCE
    assert not User.objects.get(username="fin").is_superuser
    entry = AuditEntry.objects.latest("id")
    assert (entry.actor, entry.action) == ("root", "user.create")
    assert PASSWORD not in str(entry.detail)


def test_a_customer_role_without_a_customer_is_refused_with_a_message(root: Client) -> None:
    form = {"username": "bob", "role": "customer_viewer", "password1": PASSWORD,
            "password2": PASSWORD, "usable_password": "true", "customer": "", "cluster": ""}  # fmt: skip
    answer = root.post("/admin/core/user/add/", form)
    assert answer.status_code == 200
    assert b"customer_role_has_customer" in answer.content
    assert not User.objects.filter(username="bob").exists()


def test_the_audit_log_cannot_be_edited_here(root: Client) -> None:
    entry = audit(SYSTEM, "x", "y")
    assert (
        root.post(f"/admin/core/auditentry/{entry.pk}/change/", {"actor": "me"}).status_code == 403
    )
    assert (
        root.post(f"/admin/core/auditentry/{entry.pk}/delete/", {"post": "yes"}).status_code == 403
    )
    assert AuditEntry.objects.get(pk=entry.pk).actor == SYSTEM.name


def test_tokens_are_revoked_here_and_their_hashes_not_shown(root: Client) -> None:
    token = ApiToken.objects.create(
        name="slurm", role=Role.SCHEDULER, token_hash="f" * 64, cluster=make_cluster()
    )
    assert "f" * 64 not in root.get(f"/admin/core/apitoken/{token.pk}/change/").content.decode()
    root.post("/admin/core/apitoken/", {"action": "revoke", "_selected_action": [token.pk]})
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert AuditEntry.objects.latest("id").action == "token.revoke"


def test_nothing_is_deleted_here(root: Client) -> None:
    customer = Customer.objects.create(slug="acme", name="Acme")
    assert (
        root.post(f"/admin/core/customer/{customer.pk}/delete/", {"post": "yes"}).status_code == 403
    )
    assert Customer.objects.count() == 1
