from __future__ import annotations

import pytest

from nodes import selectors, services
from nodes.errors import InventoryRefused, TokenRefused
from nodes.models import Node
from nodes.states import NodeState
from yoco_platform.core.models import Cluster

from .machines import ago, beat, enrol, heat, make_inventory, make_node
from .racing import race


def row(node: Node) -> Node:
    return Node.objects.get(pk=node.pk)


def test_a_heartbeat_is_one_statement(cluster: Cluster, django_assert_num_queries: object) -> None:
    node = make_node(cluster, heartbeat_sequence=4)
    services.node_heard(node=node, request=beat(5, heat(40)))  # fills what is remembered
    with django_assert_num_queries(1):  # type: ignore[operator]
        wanted = services.node_heard(node=node, request=beat(6, heat(41)))
    assert wanted is False
    now = row(node)
    assert (now.heartbeat_sequence, now.readings[0]["value"], now.watch) == (6, 41, {})


def test_a_heartbeat_never_writes_back_a_state(cluster: Cluster) -> None:
    node = make_node(cluster)
    Node.objects.filter(pk=node.pk).update(state=NodeState.CORDONED)
    assert node.state == NodeState.READY
    services.node_heard(node=node, request=beat(1))
    assert row(node).state == NodeState.CORDONED


def test_a_heartbeat_that_was_overtaken_changes_nothing_but_shows_life(cluster: Cluster) -> None:
    node = make_node(cluster, last_heard_at=ago(60))
    services.node_heard(node=node, request=beat(2, heat(50)))
    Node.objects.filter(pk=node.pk).update(last_heard_at=ago(60))
    services.node_heard(node=node, request=beat(1, heat(99)))
    services.node_heard(node=node, request=beat(2, heat(99)))
    now = row(node)
    assert (now.heartbeat_sequence, now.readings[0]["value"]) == (2, 50)
    assert now.last_heard_at is not None
    assert now.last_heard_at > ago(10)


def test_another_boot_begins_its_own_count(cluster: Cluster) -> None:
    node = make_node(cluster, heartbeat_sequence=500, event_sequence=77)
    services.node_heard(node=node, request=beat(1, boot_id="boot-2"))
    now = row(node)
    assert (now.boot_id, now.previous_boot_id) == ("boot-2", "boot-1")
    assert (now.heartbeat_sequence, now.event_sequence) == (1, 0)


def test_a_late_heartbeat_of_the_boot_before_changes_nothing(cluster: Cluster) -> None:
    node = make_node(cluster)
    services.node_heard(node=node, request=beat(1, boot_id="boot-2"))
    services.node_heard(node=node, request=beat(900, heat(99), boot_id="boot-1"))
    now = row(node)
    assert (now.boot_id, now.heartbeat_sequence, now.readings) == ("boot-2", 1, [])


def test_a_revoked_token_is_refused_even_while_it_is_remembered(cluster: Cluster) -> None:
    node, reply = enrol(cluster)
    Node.objects.filter(pk=node.pk).update(token_hash="another process enrolled it again")
    assert services.node_for_token(reply.token).pk == node.pk
    with pytest.raises(TokenRefused):
        services.node_heard(node=node, request=beat(1))
    with pytest.raises(TokenRefused):
        services.node_touched(node=node)


def test_a_retired_node_is_not_heard(cluster: Cluster) -> None:
    node = make_node(cluster, state=NodeState.RETIRED)
    with pytest.raises(TokenRefused):
        services.node_heard(node=node, request=beat(1))


def test_an_inventory_is_wanted_until_it_came(cluster: Cluster) -> None:
    node, _ = enrol(cluster)
    assert services.node_heard(node=node, request=beat(0)) is True
    with_it = beat(1, inventory=make_inventory(num_gpus=3, rack="r9"))
    assert services.node_heard(node=node, request=with_it) is False
    assert services.node_heard(node=node, request=beat(2)) is False
    now = row(node)
    assert (now.gpus.count(), now.rack, now.inventory_hash) == (3, "r9", "hash-1")
    assert services.node_heard(node=node, request=beat(3, inventory_hash="hash-2")) is True


def test_other_devices_send_a_ready_node_back_to_its_tests(cluster: Cluster) -> None:
    node = make_node(cluster)
    changed = beat(1, inventory=make_inventory(num_gpus=2), inventory_hash="hash-2")
    services.node_heard(node=node, request=changed)
    assert row(node).state == NodeState.TESTING
    assert node.transitions.get().reason == "its devices changed: it now reports 2"


def test_another_port_alone_does_not(cluster: Cluster) -> None:
    node = make_node(cluster)
    inventory = make_inventory(num_gpus=2)
    services.node_heard(node=node, request=beat(1, inventory=inventory, inventory_hash="h2"))
    Node.objects.filter(pk=node.pk).update(state=NodeState.READY)
    services.node_heard(node=node, request=beat(2, inventory=inventory, inventory_hash="h3"))
    assert row(node).state == NodeState.READY


def test_a_wrong_inventory_is_refused_and_not_half_stored(cluster: Cluster) -> None:
    node = make_node(cluster)
    wrong = beat(1, inventory=make_inventory(pool=""), inventory_hash="hash-2")
    with pytest.raises(InventoryRefused):
        services.node_heard(node=node, request=wrong)
    assert (row(node).pool, row(node).inventory_hash) == ("train", "hash-1")


@pytest.mark.parametrize("fields", [{"boot_id": ""}, {"boot_id": "b" * 65}])
def test_a_boot_id_that_does_not_fit_is_refused(cluster: Cluster, fields: dict[str, str]) -> None:
    with pytest.raises(InventoryRefused):
        services.node_heard(node=make_node(cluster), request=beat(1, **fields))


def test_large_fleets_speak_more_slowly_and_are_judged_by_what_they_were_told(
    cluster: Cluster,
) -> None:
    node = make_node(cluster)
    Node.objects.bulk_create(
        Node(cluster=cluster, name=f"n{n}", state_since=ago(0), endpoint={}, token_hash=f"t{n}")
        for n in range(256)
    )
    assert selectors.heartbeat_s() == 10.0
    services.node_heard(node=node, request=beat(1))
    assert row(node).heartbeat_s == 10.0


@pytest.mark.django_db(transaction=True)
def test_heartbeats_that_race_leave_the_newest() -> None:
    from .machines import make_cluster

    node = make_node(make_cluster())
    calls = [
        lambda n=n: services.node_heard(node=node, request=beat(n, heat(float(n))))  # type: ignore[misc]
        for n in range(1, 9)
    ]
    assert race(*calls) == [False] * 8
    assert (row(node).heartbeat_sequence, row(node).readings[0]["value"]) == (8, 8.0)
