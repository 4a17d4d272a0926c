from __future__ import annotations

from datetime import UTC

import pytest
from django.db import transaction

from nodes import services
from nodes.errors import StepRefused
from nodes.models import Node, NodeTransition
from nodes.signals import node_stepped
from nodes.states import FINAL, MAY_TAKE_WORK, STEPS, NodeState
from yoco_platform.core.models import Cluster, OutboxNotice

from .machines import make_cluster, make_node


def test_every_state_but_retired_leads_on() -> None:
    assert set(STEPS) == set(NodeState)
    assert {NodeState.RETIRED} == FINAL


def test_every_state_can_be_reached_from_joining() -> None:
    reached, edge = {NodeState.JOINING}, [NodeState.JOINING]
    while edge:
        for after in STEPS[edge.pop()] - reached:
            reached.add(after)
            edge.append(after)
    assert reached == set(NodeState)


def test_probation_may_take_work_and_suspicion_may_not() -> None:
    assert {NodeState.READY, NodeState.PROBATION} == MAY_TAKE_WORK


@pytest.mark.parametrize("believed", list(NodeState))
@pytest.mark.parametrize("to", list(NodeState))
def test_a_step_is_taken_only_along_the_table(
    cluster: Cluster, believed: NodeState, to: NodeState
) -> None:
    node = make_node(cluster, state=believed)
    if to in STEPS[believed]:
        services.node_step(node=node, to=to, reason="because", actor="test")
        assert Node.objects.get(pk=node.pk).state == to
    else:
        with pytest.raises(StepRefused):
            services.node_step(node=node, to=to, reason="because", actor="test")
        assert Node.objects.get(pk=node.pk).state == believed
        assert not NodeTransition.objects.exists()


def test_whoever_believes_an_old_state_is_refused(cluster: Cluster) -> None:
    node = make_node(cluster)
    stale = Node.objects.get(pk=node.pk)
    services.node_step(node=node, to=NodeState.CORDONED, reason="first", actor="a")
    with pytest.raises(StepRefused, match="somebody else moved it first"):
        services.node_step(node=stale, to=NodeState.SUSPECT, reason="second", actor="b")
    assert Node.objects.get(pk=node.pk).state == NodeState.CORDONED
    assert [row.reason for row in NodeTransition.objects.all()] == ["first"]


@pytest.mark.django_db(transaction=True)
def test_news_of_a_step_leaves_after_commit_and_not_after_a_rollback() -> None:
    heard: list[tuple[int, str]] = []

    def hear(node_id: int, to_state: str, **_: object) -> None:
        heard.append((node_id, to_state))

    node_stepped.connect(hear)
    try:
        node = make_node(make_cluster())
        with pytest.raises(RuntimeError), transaction.atomic():
            services.node_step(node=node, to=NodeState.SUSPECT, reason="r", actor="a")
            raise RuntimeError
        assert heard == []
        node.refresh_from_db()
        services.node_step(node=node, to=NodeState.SUSPECT, reason="r", actor="a")
    finally:
        node_stepped.disconnect(hear)
    assert heard == [(node.pk, "suspect")]
    assert list(OutboxNotice.objects.order_by("id").values_list("topic", "kind")) == [
        ("fleet", "node_step"),
        (f"node:{node.pk}", "node_step"),
    ]
    assert node.state_since.tzinfo is UTC
