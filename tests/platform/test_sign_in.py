"""Guessing passwords: some tries, then a wait. The cache is the one of each mode."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.test import Client

from yoco_platform.core import sign_in
from yoco_platform.core.accounts import admin_create
from yoco_platform.core.auth import Role
from yoco_platform.core.models import AuditEntry

from .cast import PASSWORD, make_user

pytestmark = pytest.mark.django_db

DOORS = ["/login", "/admin/login/"]


@pytest.fixture
def root(settings: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """An administrator of a name that no other test has counted; few tries and a quick hash."""
    monkeypatch.setattr(sign_in, "FAILURES_MAX", 4)
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    name = f"root-{uuid.uuid4().hex}"
    admin_create(name=name, password=PASSWORD)
    return name


def attempt(door: str, name: str, password: str, address: str = "10.0.0.1") -> Any:
    form = {"username": name, "password": password}
    return Client(REMOTE_ADDR=address).post(door, form)


@pytest.mark.parametrize("door", DOORS)
def test_one_try_too_many_is_refused_even_with_the_right_password(root: str, door: str) -> None:
    for _ in range(sign_in.FAILURES_MAX):
        assert attempt(door, root, "wrong").status_code == 200
    answer = attempt(door, root, PASSWORD)
    assert answer.status_code == 429
    assert f'role="alert">{sign_in.MESSAGE}</p>' in answer.content.decode()
    assert answer["Retry-After"] == "900"
    assert "sessionid" not in answer.cookies


def test_both_doors_count_together(root: str) -> None:
    for _ in range(sign_in.FAILURES_MAX // 2):
        for door in DOORS:
            attempt(door, f"{root.title()} ", "wrong")
    assert attempt("/login", root, PASSWORD).status_code == 429


def test_another_name_and_another_address_are_not_refused(root: str) -> None:
    alice = make_user(f"alice-{root}", Role.OPERATOR).username
    for _ in range(sign_in.FAILURES_MAX + 1):
        attempt("/login", root, "wrong")
    assert attempt("/login", alice, PASSWORD).status_code == 302
    assert attempt("/login", root, PASSWORD, address="10.0.0.2").status_code == 302


def test_who_gets_in_begins_anew(root: str) -> None:
    for _ in range(2):
        for _ in range(sign_in.FAILURES_MAX - 1):
            attempt("/login", root, "wrong")
        assert attempt("/login", root, PASSWORD).status_code == 302


def test_a_name_that_is_guessed_from_everywhere_waits_too(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "FAILURES_OF_NAME_MAX", 5)
    for number in range(5):
        assert attempt("/login", root, "wrong", address=f"10.0.1.{number}").status_code == 200
    assert attempt("/login", root, PASSWORD, address="10.0.2.1").status_code == 429


def test_a_page_that_is_only_looked_at_counts_nothing(root: str) -> None:
    for _ in range(sign_in.FAILURES_MAX + 1):
        assert Client().get("/login").status_code == 200
    assert attempt("/login", root, PASSWORD).status_code == 302


@pytest.mark.parametrize("door", DOORS)
def test_a_sign_in_is_recorded_and_a_failed_one_is_not(root: str, door: str) -> None:
    attempt(door, root, "wrong")
    assert not AuditEntry.objects.filter(action="user.sign_in").exists()
    attempt(door, root, PASSWORD, address="10.0.0.7")
    entry = AuditEntry.objects.get(action="user.sign_in")
    assert (entry.actor, entry.detail) == (root, {"address": "10.0.0.7"})
