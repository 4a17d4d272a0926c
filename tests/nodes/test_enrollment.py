from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from agent.protocol import Endpoint, EnrollReply, Gpu
from nodes import services
from nodes.errors import (
    InventoryRefused,
    LifetimeRefused,
    NodeHeard,
    NodeRetired,
    TokenExpired,
    TokenRefused,
    TokenUsed,
)
from nodes.models import EnrollmentToken, ListeningSpan, Node
from nodes.states import HEARD, NodeState
from yoco_platform.core import clock
from yoco_platform.core.auth import hash_token
from yoco_platform.core.errors import Forbidden
from yoco_platform.core.models import AuditEntry, Cluster

from .machines import (
    OPERATOR,
    VIEWER,
    ago,
    enrol,
    make_cluster,
    make_node,
    make_request,
    make_token,
)
from .racing import race


def test_a_token_is_kept_as_a_hash_only(cluster: Cluster) -> None:
    row, plain = services.enrollment_token_create(viewer=OPERATOR, cluster=cluster)
    assert row.token_hash == hash_token(plain)
    assert plain not in str(EnrollmentToken.objects.values())
    assert AuditEntry.objects.get().action == "enrollment_token_create"


def test_a_viewer_makes_no_token(cluster: Cluster) -> None:
    with pytest.raises(Forbidden):
        services.enrollment_token_create(viewer=VIEWER, cluster=cluster)


@pytest.mark.parametrize("lifetime", [timedelta(0), timedelta(days=31)])
def test_a_token_lives_neither_no_time_nor_for_ever(cluster: Cluster, lifetime: timedelta) -> None:
    with pytest.raises(LifetimeRefused):
        services.enrollment_token_create(viewer=OPERATOR, cluster=cluster, lifetime=lifetime)


def test_an_agent_that_enrols_becomes_a_joining_node(cluster: Cluster) -> None:
    node, reply = enrol(cluster, "gpu-a", pool="train", rack="r7", num_gpus=2)
    row = Node.objects.get()
    assert reply == EnrollReply(
        node_id=str(row.pk), cluster=cluster.slug, token=reply.token, heartbeat_s=2.0
    )
    assert (row.name, row.state, row.pool, row.rack) == ("gpu-a", "joining", "train", "r7")
    assert [gpu.uuid for gpu in row.gpus.all()] == ["gpu-0", "gpu-1"]
    assert node == row
    assert row.token_hash == hash_token(reply.token)
    assert EnrollmentToken.objects.get().used_by == row


def test_a_token_opens_the_door_once(cluster: Cluster) -> None:
    token = make_token(cluster)
    services.node_enroll(token=token, request=make_request("a"))
    with pytest.raises(TokenUsed):
        services.node_enroll(token=token, request=make_request("b"))
    assert Node.objects.count() == 1


def test_an_unknown_token_opens_nothing(cluster: Cluster) -> None:
    with pytest.raises(TokenRefused) as refused:
        services.node_enroll(token="yoco_enroll_wrong", request=make_request())
    assert refused.value.code == "token_refused"
    assert not Node.objects.exists()


def test_an_expired_token_opens_nothing(cluster: Cluster) -> None:
    token = make_token(cluster)
    EnrollmentToken.objects.update(expires_at=clock.now())
    with pytest.raises(TokenExpired):
        services.node_enroll(token=token, request=make_request())
    assert EnrollmentToken.objects.get().used_at is None


def test_a_node_token_does_not_enrol(cluster: Cluster) -> None:
    _, reply = enrol(cluster)
    with pytest.raises(TokenRefused):
        services.node_enroll(token=reply.token, request=make_request("b"))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"hostname": ""}, "hostname"),
        ({"pool": "p" * 81}, "pool"),
        ({"num_gpus": 65}, "gpus"),
        ({"gpus": [Gpu(index=0, uuid="u", model="m", memory_bytes=1)] * 2}, "gpus"),
        ({"gpus": [Gpu(index=0, uuid="u", model="m", memory_bytes=-1)]}, "gpus"),
        ({"endpoint": Endpoint(host="", store_port=1, data_port=1)}, "endpoint"),
        ({"endpoint": Endpoint(host="h", store_port=0, data_port=1)}, "endpoint"),
    ],
)
def test_a_wrong_inventory_leaves_the_token_unspent(
    cluster: Cluster, fields: dict[str, object], field: str
) -> None:
    token = make_token(cluster)
    with pytest.raises(InventoryRefused) as refused:
        services.node_enroll(token=token, request=make_request("a", **fields))
    assert refused.value.details["field"] == field
    assert EnrollmentToken.objects.get().used_at is None
    services.node_enroll(token=token, request=make_request("a"))


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "a\n", "x" * 121])
def test_a_node_needs_a_plain_name(cluster: Cluster, name: str) -> None:
    with pytest.raises(InventoryRefused):
        services.node_enroll(token=make_token(cluster), request=make_request(name))


def test_enrolling_again_keeps_the_row_and_revokes_the_old_token(
    cluster: Cluster, commits: Any
) -> None:
    first, old = enrol(cluster, "a")
    fallen_silent()
    with commits(execute=True):
        second, new = enrol(cluster, "a", num_gpus=1)
    assert first.pk == second.pk
    with pytest.raises(TokenRefused):
        services.node_for_token(old.token)
    assert services.node_for_token(new.token).pk == first.pk
    assert Node.objects.get().gpus.count() == 1


def test_the_same_name_in_another_cluster_is_another_node(cluster: Cluster) -> None:
    first, _ = enrol(cluster, "a")
    second, _ = enrol(make_cluster(), "a")
    assert first.pk != second.pk


def fallen_silent() -> None:
    """Nothing was heard of anybody for a minute in which the platform was listening."""
    Node.objects.update(last_heard_at=ago(60))
    ListeningSpan.objects.create(pk=1, began_at=ago(3600), last_at=ago(1))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NodeState.READY, "testing"),
        (NodeState.LOST, "joining"),
        (NodeState.QUARANTINED, "quarantined"),
        (NodeState.CORDONED, "cordoned"),
        (NodeState.SUSPECT, "suspect"),
    ],
)
def test_enrolling_again_does_not_undo_what_holds_a_node(
    cluster: Cluster, before: NodeState, after: str
) -> None:
    node = make_node(cluster, state=before, name="a")
    fallen_silent()
    services.node_enroll(token=make_token(cluster), request=make_request("a"))
    assert Node.objects.get(pk=node.pk).state == after


@pytest.mark.parametrize("state", sorted(HEARD))
def test_no_token_takes_over_a_node_that_is_heard(cluster: Cluster, state: NodeState) -> None:
    node, reply = enrol(cluster, "a")
    Node.objects.update(state=state, last_heard_at=ago(5))
    ListeningSpan.objects.create(pk=1, began_at=ago(3600), last_at=ago(1))
    token = make_token(cluster)
    with pytest.raises(NodeHeard, match="stop that agent and try again after 6 s") as refused:
        services.node_enroll(token=token, request=make_request("a", boot_id="boot-2"))
    assert (refused.value.code, refused.value.status) == ("node_heard", 409)
    now = Node.objects.get()
    assert (now.token_hash, now.boot_id) == (hash_token(reply.token), node.boot_id)
    assert EnrollmentToken.objects.get(token_hash=hash_token(token)).used_at is None
    Node.objects.update(last_heard_at=ago(7))
    services.node_enroll(token=token, request=make_request("a", boot_id="boot-2"))


def test_our_own_restart_makes_no_node_silent(cluster: Cluster) -> None:
    make_node(cluster, name="a", last_heard_at=ago(600))
    ListeningSpan.objects.create(pk=1, began_at=ago(3600), last_at=ago(60))
    with pytest.raises(NodeHeard):
        services.node_enroll(token=make_token(cluster), request=make_request("a"))


def test_a_retired_name_stays_retired(cluster: Cluster) -> None:
    make_node(cluster, state=NodeState.RETIRED, name="a")
    with pytest.raises(NodeRetired):
        services.node_enroll(token=make_token(cluster), request=make_request("a"))


def test_a_token_is_looked_up_once_and_then_remembered(
    cluster: Cluster, django_assert_num_queries: object
) -> None:
    _, reply = enrol(cluster)
    services.node_for_token(reply.token)
    with django_assert_num_queries(0):  # type: ignore[operator]
        services.node_for_token(reply.token)


@pytest.mark.django_db(transaction=True)
def test_two_agents_that_race_for_one_token_get_one_node() -> None:
    token = make_token(make_cluster())
    results = race(
        lambda: services.node_enroll(token=token, request=make_request("a")),
        lambda: services.node_enroll(token=token, request=make_request("b")),
    )
    assert sorted(type(r).__name__ for r in results) == ["EnrollReply", "TokenUsed"]
    assert Node.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_tokens_that_race_for_one_name_one_makes_the_node() -> None:
    cluster = make_cluster()
    tokens = [make_token(cluster), make_token(cluster)]
    results = race(
        *(lambda t=t: services.node_enroll(token=t, request=make_request("a")) for t in tokens)  # type: ignore[misc]
    )
    assert sorted(type(r).__name__ for r in results) == ["EnrollReply", "NodeHeard"]
    node = Node.objects.get()
    assert [hash_token(r.token) for r in results if isinstance(r, EnrollReply)] == [node.token_hash]
    assert EnrollmentToken.objects.filter(used_at=None).count() == 1
    assert node.gpus.count() == 2
