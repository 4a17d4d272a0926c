from __future__ import annotations

from typing import Any

import pytest

from nodes import services
from nodes.errors import NodeUnknown, PolicyRefused, ReasonMissing, StepRefused
from nodes.models import Node
from nodes.states import RELEASABLE, NodeState
from yoco_platform.core.auth import Role, Viewer
from yoco_platform.core.errors import Forbidden
from yoco_platform.core.models import AuditEntry, Cluster

from .machines import OPERATOR, VIEWER, make_cluster, make_node

ACTIONS = [
    (services.node_drain, "draining"),
    (services.node_cordon, "cordoned"),
    (services.node_quarantine, "quarantined"),
]


@pytest.mark.parametrize(("act", "to"), ACTIONS)
def test_an_operator_takes_a_node_out(cluster: Cluster, act: Any, to: str) -> None:
    node = make_node(cluster)
    act(viewer=OPERATOR, node=node, reason="new firmware")
    now = Node.objects.get(pk=node.pk)
    assert (now.state, now.held_state) == (to, to)
    step = node.transitions.get()
    assert (step.reason, step.actor) == ("new firmware", "olga")
    audit = AuditEntry.objects.get()
    assert (audit.action, audit.subject) == (f"node_{to}", f"node:{node.pk}")


@pytest.mark.parametrize("act", [a for a, _ in ACTIONS] + [services.node_release])
def test_a_viewer_may_not(cluster: Cluster, act: Any) -> None:
    node = make_node(cluster, state=NodeState.CORDONED)
    with pytest.raises(Forbidden):
        act(viewer=VIEWER, node=node, reason="please")
    assert Node.objects.get(pk=node.pk).state == "cordoned"


@pytest.mark.parametrize("act", [a for a, _ in ACTIONS] + [services.node_release])
def test_a_reason_is_asked_for(cluster: Cluster, act: Any) -> None:
    with pytest.raises(ReasonMissing):
        act(viewer=OPERATOR, node=make_node(cluster), reason="  ")


@pytest.mark.parametrize("act", [a for a, _ in ACTIONS] + [services.node_release])
def test_a_scheduler_acts_in_its_own_cluster_only(cluster: Cluster, act: Any) -> None:
    elsewhere = make_cluster()
    scheduler = Viewer(name="slurm", role=Role.SCHEDULER, cluster_id=elsewhere.pk)
    with pytest.raises(NodeUnknown):
        act(viewer=scheduler, node=make_node(cluster), reason="mine?")


@pytest.mark.parametrize("state", sorted(RELEASABLE))
def test_a_release_ends_whatever_holds_a_node(cluster: Cluster, state: NodeState) -> None:
    node = make_node(cluster, state=state, held_state="cordoned", suspect_rule="sustained_heat")
    services.node_release(viewer=OPERATOR, node=node, reason="looked at it, all well")
    now = Node.objects.get(pk=node.pk)
    assert (now.state, now.held_state, now.suspect_rule) == ("ready", "", "")


@pytest.mark.parametrize("state", sorted(set(NodeState) - RELEASABLE))
def test_where_nothing_holds_a_node_a_release_is_refused(
    cluster: Cluster, state: NodeState
) -> None:
    with pytest.raises(StepRefused):
        services.node_release(viewer=OPERATOR, node=make_node(cluster, state=state), reason="r")


def test_a_drained_node_is_cordoned_once_it_is_empty(cluster: Cluster) -> None:
    node = make_node(cluster)
    services.node_drain(viewer=OPERATOR, node=node, reason="new firmware")
    assert services.node_emptied(node_id=node.pk) is True
    assert services.node_emptied(node_id=node.pk) is False
    now = Node.objects.get(pk=node.pk)
    assert (now.state, now.held_state) == ("cordoned", "cordoned")


@pytest.mark.parametrize(
    "data",
    [
        {"heat": {"at_least": 70}},
        {"heat": {"heartbeats": 0}},
        {"heat": {"mode": "perhaps"}},
        {"heat": {"unknown": 1}},
        {"breakers": {"pool_share": 0}},
        {"breakers": {"rack_share": 1.5}},
        {"probation_s": -1},
        {"probation_s": "long"},
        {"liveness": {"large_fleet_heartbeat_s": 0}},
        [],
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(cluster: Cluster, data: object) -> None:
    with pytest.raises(PolicyRefused):
        services.policy_create(viewer=OPERATOR, data=data, note="try")


def test_policies_are_versions_and_need_a_note(cluster: Cluster) -> None:
    first = services.policy_create(viewer=OPERATOR, data={}, note="as built in")
    second = services.policy_create(viewer=OPERATOR, data={"probation_s": 60}, note="longer")
    assert (first.version, second.version) == (1, 2)
    assert second.data["heat"]["at_least"] == 90.0
    with pytest.raises(ReasonMissing):
        services.policy_create(viewer=OPERATOR, data={}, note="")
    with pytest.raises(Forbidden):
        services.policy_create(viewer=VIEWER, data={}, note="mine")
