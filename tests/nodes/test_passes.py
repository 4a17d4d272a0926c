from __future__ import annotations

from typing import Any

import pytest

from nodes import selectors, services
from nodes.models import ListeningSpan, Node
from nodes.states import NodeState
from yoco_platform.core.models import Cluster

from .machines import OPERATOR, ago, beat, enrol, make_inventory, make_node


@pytest.fixture
def listening(db: None) -> None:
    """The platform has been listening for an hour."""
    ListeningSpan.objects.create(pk=1, began_at=ago(3600), last_at=ago(1))


def state(node: Node) -> str:
    return Node.objects.get(pk=node.pk).state


@pytest.mark.parametrize(
    ("silent_s", "after"), [(5, "ready"), (6.5, "suspect"), (29, "suspect"), (30.5, "lost")]
)
def test_a_ready_node_that_falls_silent(
    cluster: Cluster, listening: None, silent_s: float, after: str
) -> None:
    node = make_node(cluster, last_heard_at=ago(silent_s))
    services.find_lost()
    assert state(node) == after


def test_the_reason_has_the_figures_and_silence_moves_nothing(
    cluster: Cluster, listening: None
) -> None:
    node = make_node(cluster, last_heard_at=ago(7))
    services.find_lost()
    step = node.transitions.get()
    assert step.reason.startswith("silent for 7.")
    assert "3 heartbeats of 2 s missed" in step.reason
    [view] = selectors.nodes_for_work(cluster.pk)
    assert (view.suspect, view.silent, view.lost, view.takes_work) == (False, True, False, False)


def test_a_slow_cadence_is_given_its_time(cluster: Cluster, listening: None) -> None:
    node = make_node(cluster, last_heard_at=ago(29), heartbeat_s=10)
    quick = make_node(cluster, last_heard_at=ago(29), heartbeat_s=2)
    services.find_lost()
    assert (state(node), state(quick)) == ("ready", "suspect")


def test_nobody_is_lost_by_the_platform_being_away(cluster: Cluster) -> None:
    ListeningSpan.objects.create(pk=1, began_at=ago(3600), last_at=ago(300))
    node = make_node(cluster, last_heard_at=ago(301))
    assert services.find_lost() == 0
    assert state(node) == "ready"
    ListeningSpan.objects.update(began_at=ago(40), last_at=ago(1))
    assert services.find_lost() == 1
    assert state(node) == "lost"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NodeState.JOINING, "lost"),
        (NodeState.CORDONED, "lost"),
        (NodeState.DRAINING, "lost"),
        (NodeState.QUARANTINED, "lost"),
        (NodeState.RETIRED, "retired"),
        (NodeState.LOST, "lost"),
    ],
)
def test_silence_means_something_in_every_state_but_the_ends(
    cluster: Cluster, listening: None, before: NodeState, after: str
) -> None:
    node = make_node(cluster, state=before, last_heard_at=ago(60))
    services.find_lost()
    assert state(node) == after


def test_any_request_is_a_sign_of_life(cluster: Cluster, listening: None) -> None:
    node = make_node(cluster, last_heard_at=ago(60))
    services.node_touched(node=node)
    services.find_lost()
    assert state(node) == "ready"


def test_a_node_that_was_merely_silent_is_ready_again_when_heard(
    cluster: Cluster, listening: None
) -> None:
    node = make_node(cluster, last_heard_at=ago(8))
    services.find_lost()
    services.nodes_advance()
    assert state(node) == "suspect"
    services.node_heard(node=node, request=beat(1))
    services.nodes_advance()
    assert state(node) == "ready"
    assert Node.objects.get(pk=node.pk).suspect_rule == ""


def test_silence_during_probation_begins_it_anew(cluster: Cluster, listening: None) -> None:
    node = make_node(cluster, state=NodeState.PROBATION, last_heard_at=ago(8), state_since=ago(19))
    services.find_lost()
    services.node_heard(node=node, request=beat(1))
    services.nodes_advance()
    services.nodes_advance()
    assert state(node) == "probation"


def test_a_lost_node_returns_through_its_tests(cluster: Cluster, listening: None) -> None:
    node = make_node(cluster, last_heard_at=ago(60))
    services.find_lost()
    services.nodes_advance()
    assert state(node) == "lost"
    services.node_heard(node=node, request=beat(1))
    services.nodes_advance()
    assert state(node) == "testing"
    services.nodes_advance()
    assert state(node) == "testing", "a heartbeat heard before the tests began proves nothing"
    services.node_heard(node=node, request=beat(2))
    services.nodes_advance()
    assert state(node) == "ready"
    assert [s.to_state for s in node.transitions.all()] == ["lost", "testing", "ready"]


@pytest.mark.parametrize(
    ("act", "held"),
    [
        (services.node_cordon, "cordoned"),
        (services.node_drain, "draining"),
        (services.node_quarantine, "quarantined"),
    ],
)
def test_a_node_that_a_person_took_out_stays_out_after_a_silence(
    cluster: Cluster, listening: None, act: Any, held: str
) -> None:
    node = make_node(cluster, last_heard_at=ago(60))
    act(viewer=OPERATOR, node=node, reason="fan is loud")
    services.find_lost()
    assert state(node) == "lost"
    for sequence in (1, 2):
        services.node_heard(node=node, request=beat(sequence))
        services.nodes_advance()
    assert state(node) == held


def test_a_new_node_becomes_ready_once_its_inventory_is_complete(
    cluster: Cluster, listening: None
) -> None:
    node, _ = enrol(cluster)
    services.nodes_advance()
    assert state(node) == "joining"
    services.node_heard(node=node, request=beat(1))
    services.nodes_advance()
    assert state(node) == "joining"
    services.node_heard(node=node, request=beat(2, inventory=make_inventory()))
    services.nodes_advance()
    assert state(node) == "testing"
    services.node_heard(node=node, request=beat(3))
    services.nodes_advance()
    assert state(node) == "ready"


def test_a_node_without_devices_does_not_become_ready(cluster: Cluster, listening: None) -> None:
    node, _ = enrol(cluster, num_gpus=0)
    services.node_heard(node=node, request=beat(1, inventory=make_inventory(num_gpus=0)))
    services.nodes_advance()
    assert state(node) == "joining"


def test_a_fatal_reading_keeps_a_node_in_its_tests(cluster: Cluster, listening: None) -> None:
    from .machines import heat

    node = make_node(cluster, state=NodeState.TESTING)
    services.node_heard(node=node, request=beat(1, heat(None, outcome="fatal")))
    services.nodes_advance()
    assert state(node) == "testing"
    services.node_heard(node=node, request=beat(2, heat(50)))
    services.nodes_advance()
    assert state(node) == "ready"


def test_probation_ends_by_the_clock(cluster: Cluster, listening: None) -> None:
    young = make_node(cluster, state=NodeState.PROBATION, state_since=ago(19))
    old = make_node(cluster, state=NodeState.PROBATION, state_since=ago(21))
    services.nodes_advance()
    assert (state(young), state(old)) == ("probation", "ready")


def test_a_node_that_cannot_be_handled_does_not_keep_the_others_waiting(
    cluster: Cluster, listening: None
) -> None:
    broken = make_node(cluster, state=NodeState.TESTING, readings=[{"no": "reading"}])
    Node.objects.filter(pk=broken.pk).update(state_since=ago(60))
    sound = make_node(cluster, state=NodeState.PROBATION, state_since=ago(30))
    services.nodes_advance()
    assert (state(broken), state(sound)) == ("testing", "ready")
