"""The REST door: closed by default, one shape of errors, POSTs that may be repeated."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
from django.db import connection
from django.http import Http404
from django.test import Client
from django.urls import include, path
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from yoco_platform.core.api import ApiView, StrictSerializer, idempotent
from yoco_platform.core.auth import Permission, Role, hash_token
from yoco_platform.core.errors import Conflict
from yoco_platform.core.models import ApiToken, Customer, IdempotencyKey
from yoco_platform.core.problems import problem_body
from yoco_platform.error_views import failed, no_route

from .cast import PASSWORD, make_cluster, make_customer, make_user

handler404, handler500 = no_route, failed


class Input(StrictSerializer):
    slug = serializers.SlugField()


class MakeApi(ApiView):
    permissions: ClassVar = {"GET": Permission.JOB_READ, "POST": Permission.JOB_SUBMIT}

    def get(self, request: Request) -> Response:
        if "missing" in request.query_params:
            raise Http404
        if "bug" in request.query_params:
            raise ZeroDivisionError
        return Response({"viewer": self.viewer.name})

    @idempotent
    def post(self, request: Request) -> Response:
        body = Input(data=request.data).values
        customer = make_customer(body["slug"])
        if customer.slug == "refused":
            raise Conflict("Not this one.", slug=customer.slug)
        return Response({"id": customer.pk, "slug": customer.slug}, status=201)


class UndeclaredApi(ApiView):
    def get(self, request: Request) -> Response:
        return Response({})


urlpatterns = [
    path("api/make", MakeApi.as_view()),
    path("api/undeclared", UndeclaredApi.as_view()),
    path("", include("yoco_platform.urls")),
]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def token() -> str:
    ApiToken.objects.create(
        name="slurm", role=Role.SCHEDULER, token_hash=hash_token("secret"), cluster=make_cluster()
    )
    return "secret"


def _post(token: str, body: Any, key: str = "", **extra: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    if key:
        headers["Idempotency-Key"] = key
    return Client().post("/api/make", body, "application/json", headers=headers, **extra)


def test_nobody_gets_in_and_the_answer_says_how_to(token: str) -> None:
    answer = Client().get("/api/make")
    assert answer.status_code == 401
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer.json()["code"] == "unauthenticated"


@pytest.mark.parametrize(
    "change",
    [{"revoked_at": "2020-01-01T00:00Z"}, {"expires_at": "2020-01-01T00:00Z"}, {"token_hash": "x"}],
)
def test_a_dead_token_is_refused(token: str, change: dict[str, str]) -> None:
    ApiToken.objects.update(**change)
    assert _post(token, {"slug": "a"}).json()["code"] == "unauthenticated"
    assert Customer.objects.count() == 0


def test_a_view_that_declares_no_permission_lets_nobody_in(token: str) -> None:
    answer = Client().get("/api/undeclared", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_role_without_the_permission_is_refused_and_one_with_it_is_not() -> None:
    make_user("bob", Role.CUSTOMER_VIEWER, make_customer("acme"))
    bob = Client()
    assert bob.login(username="bob", password=PASSWORD)
    assert bob.get("/api/make").json() == {"viewer": "bob"}
    assert bob.post("/api/make", {"slug": "x"}, "application/json").status_code == 403


def test_a_session_needs_the_csrf_token_and_a_machine_token_does_not(token: str) -> None:
    make_user("alice", Role.OPERATOR)
    alice = Client(enforce_csrf_checks=True)
    assert alice.login(username="alice", password=PASSWORD)
    refused = alice.post("/api/make", {"slug": "x"}, "application/json")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert _post(token, {"slug": "x"}).status_code == 201


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("{", 400, "malformed"),
        ({}, 422, "invalid_field"),
        ({"slug": "a", "colour": "red"}, 422, "unknown_field"),
        ([1], 422, "invalid_field"),
        ({"slug": "refused"}, 409, "conflict"),
    ],
)
def test_bad_input_is_refused_with_one_clear_error_and_changes_nothing(
    token: str, body: Any, status: int, code: str
) -> None:
    answer = _post(token, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert Customer.objects.count() == 0


def test_an_unknown_field_is_named(token: str) -> None:
    problem = _post(token, {"slug": "a", "colour": "red"}).json()
    assert problem["detail"] == "colour is not known here"
    assert problem["details"] == {"fields": ["colour"]}


def test_what_is_not_there_and_what_is_our_fault_look_alike_in_shape(token: str) -> None:
    client = Client(raise_request_exception=False)
    headers = {"Authorization": f"Bearer {token}"}
    missing = client.get("/api/make?missing", headers=headers).json()
    bug = client.get("/api/make?bug", headers=headers).json()
    nowhere = client.get("/api/nowhere", headers=headers).json()
    assert [one["code"] for one in (missing, bug, nowhere)] == [
        "not_found",
        "internal",
        "not_found",
    ]
    assert missing.keys() == bug.keys() == nowhere.keys()
    assert "ZeroDivision" not in str(bug)


def test_a_repeated_key_is_done_once_and_answered_alike(token: str) -> None:
    first = _post(token, {"slug": "acme"}, key="k1")
    again = _post(token, {"slug": "acme"}, key="k1")
    assert (first.status_code, first.json()) == (201, again.json())
    assert again.status_code == 201
    assert again["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first
    assert Customer.objects.count() == 1


def test_a_key_of_another_request_is_refused(token: str) -> None:
    _post(token, {"slug": "acme"}, key="k1")
    other = _post(token, {"slug": "other"}, key="k1")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    assert list(Customer.objects.values_list("slug", flat=True)) == ["acme"]


def test_a_refused_request_leaves_no_key_behind(token: str) -> None:
    assert _post(token, {"slug": "refused"}, key="k1").status_code == 409
    assert IdempotencyKey.objects.count() == 0
    assert _post(token, {"slug": "acme"}, key="k1").status_code == 201


def test_tokens_of_one_name_have_keys_of_their_own(token: str) -> None:
    ApiToken.objects.create(
        name="slurm",
        role=Role.SCHEDULER,
        token_hash=hash_token("other"),
        cluster=make_cluster("there"),
        customer=make_customer("globex"),
    )
    mine = _post(token, {"slug": "acme"}, key="k1")
    theirs = _post("other", {"slug": "initech"}, key="k1")
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert "Idempotency-Replayed" not in theirs
    assert theirs.json()["slug"] == "initech"


def test_a_person_and_a_token_of_one_name_share_no_keys(token: str) -> None:
    alice = make_user("token:slurm", Role.OPERATOR)
    person = Client()
    person.force_login(alice)
    _post(token, {"slug": "acme"}, key="k1")
    answer = person.post(
        "/api/make", {"slug": "acme-2"}, "application/json", headers={"Idempotency-Key": "k1"}
    )
    assert answer.json()["slug"] == "acme-2"


def test_two_at_once_with_one_key_are_done_once(token: str) -> None:
    answers: list[Any] = []
    barrier = threading.Barrier(4)

    def post() -> None:
        barrier.wait(5)
        try:
            answers.append(_post(token, {"slug": "acme"}, key="k1"))
        finally:
            connection.close()

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [answer.status_code for answer in answers] == [201] * 4
    assert len({answer.content for answer in answers}) == 1
    assert Customer.objects.count() == 1


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"slug":' * 100_000,
        '{"slug": ' + "[" * 100_000 + "]" * 100_000 + "}",
        r'{"\ud800": 1}',
        r'{"slug": "\udfff"}',
        r'{"slug": ["\ud800\ud800"]}',
    ],
    ids=["lists", "objects", "closed", "key", "value", "deeper"],
)
@pytest.mark.parametrize("key", ["", "k1"])
def test_a_body_that_nobody_can_hold_is_malformed(token: str, body: str, key: str) -> None:
    answer = _post(token, body, key)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")


def test_a_pair_of_surrogates_is_a_character(token: str) -> None:
    answer = _post(token, r'{"\ud83d\ude00": 1}')
    assert (answer.status_code, answer.json()["details"]) == (422, {"fields": ["\U0001f600"]})


def test_a_problem_says_back_what_has_no_utf8() -> None:
    error = Conflict("no \ud800", given={"\udfff": ["\ud800", 1, None]})
    assert problem_body(error)["detail"] == "no ?"
    assert problem_body(error)["details"] == {"given": {"?": ["?", 1, None]}}


def test_me_says_who_i_am_and_what_i_may(token: str) -> None:
    answer = Client().get("/api/v1/me", headers={"Authorization": f"Bearer {token}"}).json()
    assert (answer["name"], answer["role"]) == ("token:slurm", "scheduler")
    assert "job.submit" in answer["permissions"]
    assert "year.close" not in answer["permissions"]
