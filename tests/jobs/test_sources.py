"""What the planner is told of holders that failed, and what the next move is served by."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs.models import Job, Move
from jobs.reconcile import reconcile_all

from .situations import at, torn
from .world import World

pytestmark = pytest.mark.django_db


def wait_at_185(world: World, job: Job) -> None:
    world.block(job, 0, at(185))
    world.block(job, 1, at(185, holds={"2": [186]}))


def test_the_buddys_copy_follows_a_custody_that_was_refused(world: World) -> None:
    world.by_node |= {(extra := world.add(9)).node.pk: extra}
    world.agents.append(extra)
    job = world.trained(standbys=2)
    killed = world.kill(job, 2, torn(185))
    wait_at_185(world, job)
    agent = world.agent_of(killed)
    agent.beat()
    (order,) = [o for o in agent.orders if isinstance(o.body, protocol.RegroupOrder)]
    agent.answer(order, ok=False, code="source_missing", message="no arena here")
    reconcile_all()
    wait_at_185(world, job)
    first, second = Move.objects.order_by("pk")
    buddy = world.rank(job, 1).node_id

    assert killed.node_id in first.source_node_ids
    assert (first.source, first.failed_code) == ("replica", "source_missing")
    assert second.source == "replica"
    assert buddy in second.source_node_ids
    assert killed.node_id not in second.source_node_ids
