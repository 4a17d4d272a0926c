"""The doors of the nodes app, through Django: roles, scopes, codes, repeats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.test import Client, override_settings
from rest_framework.test import APIClient

from nodes import services
from nodes.models import BreakerTrip, Node
from nodes.states import NodeState
from yoco_platform.core import clock
from yoco_platform.core.auth import Role, hash_token
from yoco_platform.core.models import ApiToken, Cluster, Customer, User

from .machines import make_cluster, make_node, make_request, make_token


def as_role(role: Role) -> APIClient:
    user, _ = User.objects.get_or_create(username=f"user-{role}", defaults={"role": role})
    client = APIClient()
    client.force_authenticate(user)
    return client


def as_scheduler(cluster: Cluster, customer: Customer | None = None) -> APIClient:
    plain = f"yoco_scheduler_{cluster.slug}"
    ApiToken.objects.create(
        name=cluster.slug,
        role=Role.SCHEDULER,
        token_hash=hash_token(plain),
        cluster=cluster,
        customer=customer,
    )
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {plain}")
    return client


@pytest.fixture
def operator(db: None) -> APIClient:
    return as_role(Role.OPERATOR)


@pytest.fixture
def viewer(db: None) -> APIClient:
    return as_role(Role.VIEWER)


def test_strangers_see_nothing(cluster: Cluster) -> None:
    node = make_node(cluster)
    for path in ("nodes", f"nodes/{node.pk}", "enrollment-tokens", "breakers", "health-policy"):
        assert APIClient().get(f"/api/v1/{path}").status_code == 401


def test_a_customer_sees_no_machines(cluster: Cluster) -> None:
    make_node(cluster)
    client = APIClient()
    from tests.sla.books import make_customer

    client.force_authenticate(
        User.objects.create(username="carla", role=Role.CUSTOMER_VIEWER, customer=make_customer())
    )
    assert client.get("/api/v1/nodes").status_code == 403


def test_nodes_are_listed_with_devices_and_without_tokens(
    cluster: Cluster, viewer: APIClient
) -> None:
    node = make_node(cluster)
    make_node(cluster, state=NodeState.RETIRED)
    [shown] = viewer.get("/api/v1/nodes").json()
    assert (shown["id"], shown["state"], shown["cluster"]) == (node.pk, "ready", cluster.slug)
    assert shown["gpus"][0]["simulated"] is True
    assert shown["findings"] == []
    assert node.token_hash not in str(shown)


def test_nodes_are_listed_by_pool_and_state(cluster: Cluster, viewer: APIClient) -> None:
    make_node(cluster, pool="a")
    wanted = make_node(cluster, pool="b", state=NodeState.SUSPECT)
    make_node(cluster, pool="b")
    found = viewer.get("/api/v1/nodes", {"pool": "b", "state": "suspect"}).json()
    assert [node["id"] for node in found] == [wanted.pk]
    refused = viewer.get("/api/v1/nodes", {"colour": "red"})
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_field")


def test_one_node_and_one_that_is_not_there(cluster: Cluster, viewer: APIClient) -> None:
    node = make_node(cluster)
    assert viewer.get(f"/api/v1/nodes/{node.pk}").json()["name"] == node.name
    missing = viewer.get("/api/v1/nodes/999999")
    assert (missing.status_code, missing.json()["code"]) == (404, "node_unknown")


@pytest.mark.parametrize(
    ("action", "state"),
    [("drain", "draining"), ("cordon", "cordoned"), ("quarantine", "quarantined")],
)
def test_an_operator_acts_with_a_reason(
    cluster: Cluster, operator: APIClient, viewer: APIClient, action: str, state: str
) -> None:
    node = make_node(cluster)
    path = f"/api/v1/nodes/{node.pk}/{action}"
    assert operator.post(path, {}, format="json").status_code == 422
    assert viewer.post(path, {"reason": "r"}, format="json").status_code == 403
    answer = operator.post(path, {"reason": "new firmware"}, format="json")
    assert (answer.status_code, answer.json()["state"]) == (200, state)
    steps = viewer.get(f"/api/v1/nodes/{node.pk}/transitions").json()
    assert [(s["to_state"], s["reason"], s["actor"]) for s in steps] == [
        (state, "new firmware", "user-operator")
    ]


def test_a_release_through_the_door(cluster: Cluster, operator: APIClient) -> None:
    node = make_node(cluster, state=NodeState.CORDONED)
    path = f"/api/v1/nodes/{node.pk}/release"
    assert operator.post(path, {"reason": "done"}, format="json").json()["state"] == "ready"
    again = operator.post(path, {"reason": "done"}, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "step_refused")


def test_a_repeated_action_is_done_once(cluster: Cluster, operator: APIClient) -> None:
    node = make_node(cluster)
    path = f"/api/v1/nodes/{node.pk}/drain"
    answers = [
        operator.post(path, {"reason": "r"}, format="json", headers={"Idempotency-Key": "k-1"})
        for _ in range(2)
    ]
    assert [a.status_code for a in answers] == [200, 200]
    assert answers[1].headers["Idempotency-Replayed"] == "true"
    assert node.transitions.count() == 1


def test_a_scheduler_sees_and_drains_its_own_cluster_only(cluster: Cluster) -> None:
    own, other = make_node(cluster), make_node(make_cluster())
    scheduler = as_scheduler(cluster)
    assert [n["id"] for n in scheduler.get("/api/v1/nodes").json()] == [own.pk]
    body = {"reason": "slurm drained it"}
    assert scheduler.post(f"/api/v1/nodes/{own.pk}/drain", body, format="json").status_code == 200
    assert scheduler.post(f"/api/v1/nodes/{other.pk}/drain", body, format="json").status_code == 404


@pytest.mark.parametrize("action", ["drain", "cordon", "quarantine", "release"])
def test_a_customers_scheduler_acts_on_no_machine_that_others_share(
    cluster: Cluster, action: str
) -> None:
    node = make_node(cluster, state=NodeState.TESTING)
    scheduler = as_scheduler(cluster, Customer.objects.create(slug="acme", name="Acme"))
    body = {"reason": "mine alone"}
    answer = scheduler.post(f"/api/v1/nodes/{node.pk}/{action}", body, format="json")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert not node.transitions.exists()
    assert "node.operate" not in scheduler.get("/api/v1/me").json()["permissions"]
    assert scheduler.get("/api/v1/nodes").status_code == 200


def test_a_customers_scheduler_resets_no_breaker(cluster: Cluster) -> None:
    trip = BreakerTrip.objects.create(
        cluster=cluster,
        rule="sustained_heat",
        scope="pool",
        scope_name="train",
        node=make_node(cluster),
        reason="too many",
        policy_version=0,
        tripped_at=clock.now(),
    )
    scheduler = as_scheduler(cluster, Customer.objects.create(slug="acme", name="Acme"))
    answer = scheduler.post(f"/api/v1/breakers/{trip.pk}/reset", {"reason": "mine"}, format="json")
    assert answer.status_code == 403
    assert BreakerTrip.objects.get().reset_at is None


@pytest.mark.parametrize("bound", [True, False])
def test_no_scheduler_changes_the_health_policy_of_every_cluster(
    cluster: Cluster, bound: bool
) -> None:
    customer = Customer.objects.create(slug="acme", name="Acme") if bound else None
    scheduler = as_scheduler(cluster, customer)
    body = {"policy": {"probation_s": 60}, "note": "shorter"}
    assert scheduler.post("/api/v1/health-policy", body, format="json").status_code == 403
    assert scheduler.get("/api/v1/health-policy").json()["version"] == 0


def test_an_enrollment_token_is_shown_once(
    cluster: Cluster, operator: APIClient, viewer: APIClient
) -> None:
    body = {"cluster": cluster.slug, "lifetime_s": 60}
    assert viewer.post("/api/v1/enrollment-tokens", body, format="json").status_code == 403
    made = operator.post("/api/v1/enrollment-tokens", body, format="json")
    assert made.status_code == 201
    services.node_enroll(token=made.json()["token"], request=make_request("a"))
    [listed] = operator.get("/api/v1/enrollment-tokens").json()
    assert (listed["used_by"], "token" in listed) == ("a", False)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"cluster": "nowhere"}, 404, "cluster_unknown"),
        ({}, 422, "invalid_field"),
        ({"cluster": "c", "lifetime_s": 0}, 422, "invalid_field"),
        ({"cluster": "c", "node": "a"}, 422, "unknown_field"),
    ],
)
def test_a_token_for_nothing_is_refused(
    operator: APIClient, body: dict[str, Any], status: int, code: str
) -> None:
    answer = operator.post("/api/v1/enrollment-tokens", body, format="json")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_the_health_policy_is_read_and_versioned(
    operator: APIClient, viewer: APIClient, commits: Any
) -> None:
    assert viewer.get("/api/v1/health-policy").json()["version"] == 0
    body = {"policy": {"probation_s": 60}, "note": "longer"}
    with commits(execute=True):
        made = operator.post("/api/v1/health-policy", body, format="json")
    assert (made.status_code, made.json()["version"]) == (201, 1)
    now = viewer.get("/api/v1/health-policy").json()
    assert (now["version"], now["policy"]["probation_s"]) == (1, 60.0)
    wrong = operator.post(
        "/api/v1/health-policy", {"policy": {"probation_s": -1}, "note": "n"}, format="json"
    )
    assert (wrong.status_code, wrong.json()["code"]) == (422, "policy_refused")


def test_a_tripped_breaker_is_shown_and_reset(
    cluster: Cluster, operator: APIClient, viewer: APIClient
) -> None:
    trip = BreakerTrip.objects.create(
        cluster=cluster,
        rule="sustained_heat",
        scope="pool",
        scope_name="train",
        node=make_node(cluster),
        reason="too many",
        policy_version=0,
        tripped_at=clock.now(),
    )
    assert [b["id"] for b in viewer.get("/api/v1/breakers").json()] == [trip.pk]
    path = f"/api/v1/breakers/{trip.pk}/reset"
    assert viewer.post(path, {"reason": "r"}, format="json").status_code == 403
    assert operator.post(path, {"reason": "looked"}, format="json").status_code == 200
    assert viewer.get("/api/v1/breakers").json() == []
    again = operator.post(path, {"reason": "looked"}, format="json")
    assert (again.status_code, again.json()["code"]) == (404, "breaker_unknown")


def test_findings_of_a_node_are_listed(cluster: Cluster, viewer: APIClient) -> None:
    assert viewer.get(f"/api/v1/nodes/{make_node(cluster).pk}/findings").json() == []


# --- The agent's door -------------------------------------------------------------------------------


def enroll(token: str, body: bytes) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with override_settings(ROOT_URLCONF="yoco_platform.agent_urls"):
        answer = Client().post(
            "/agent/v1/enroll", body, content_type="application/json", headers=headers
        )
    return answer.status_code, answer.json()


GOOD = msgspec.json.encode(make_request("a"))


def test_an_agent_enrols_over_http(cluster: Cluster) -> None:
    status, reply = enroll(make_token(cluster), GOOD)
    node = Node.objects.get()
    assert (status, reply["node_id"], reply["cluster"]) == (200, str(node.pk), cluster.slug)
    assert services.node_for_token(reply["token"]) == node


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 422, "bad_message"),
        (b"[]", 422, "bad_message"),
        (GOOD.replace(b'"node":"a"', b'"node":7'), 422, "bad_message"),
        (GOOD.replace(b'"node":"a"', b'"node":"a","extra":1'), 422, "bad_message"),
        (GOOD.replace(b'"node":"a"', b'"node":"a/b"'), 422, "inventory_refused"),
        (GOOD.replace(b'"protocol":1', b'"protocol":99'), 426, "protocol_not_spoken"),
    ],
)
def test_a_bad_enrolment_gets_one_clear_code_and_spends_nothing(
    cluster: Cluster, body: bytes, status: int, code: str
) -> None:
    token = make_token(cluster)
    answered, problem = enroll(token, body)
    assert (answered, problem["code"]) == (status, code)
    assert enroll(token, GOOD)[0] == 200


@pytest.mark.parametrize(("token", "code"), [("", "token_refused"), ("wrong", "token_refused")])
def test_without_a_good_token_nobody_enrols(db: None, token: str, code: str) -> None:
    status, problem = enroll(token, GOOD)
    assert (status, problem["code"]) == (401, code)


def test_a_spent_token_says_that_it_was_used(cluster: Cluster) -> None:
    token = make_token(cluster)
    enroll(token, GOOD)
    status, problem = enroll(token, GOOD)
    assert (status, problem["code"]) == (401, "token_used")
