"""A rank that its own agent does not have: the planner goes on, and what may be left of it is ended."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs.models import Incident, Job, Move, Order
from jobs.states import WorkerState

from .clockwork import Clockwork
from .situations import at
from .world import Agent, World

pytestmark = pytest.mark.django_db


def unknown(agent: Agent) -> int:
    """Answer every interrupt in this agent's hands as one that knows no such rank; how many."""
    agent.beat()
    mine = [order for order in agent.orders if isinstance(order.body, protocol.InterruptOrder)]
    agent.orders = [order for order in agent.orders if order not in mine]
    for order in mine:
        agent.answer(order, ok=False, code="unknown_worker", message="no rank runs here")
    return len(mine)


def with_one_that_is_not_there(world: World) -> Job:
    world.by_node |= {(extra := world.add(9)).node.pk: extra}
    world.agents.append(extra)
    job = world.trained(standbys=2)
    world.kill(job, 2, at(184))
    world.block(job, 0, at(184, holds={"1": [184, 185]}))
    return job


def test_a_rank_that_its_agent_does_not_know_is_moved_and_its_worker_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = with_one_that_is_not_there(world)
    gone = world.rank(job, 1)
    for _ in range(8):
        unknown(world.agent_of(gone))
        clock.pass_on(2.0)
        world.beat_all()
        clock.reconcile()
    gone.refresh_from_db()
    stops = [body.worker_ids for body in world.agent_of(gone).take(protocol.StopOrder)]

    assert gone.state == WorkerState.EXITED
    assert "has no such rank" in gone.detail
    assert Incident.objects.get().ranks == [1, 2]
    assert set(Move.objects.values_list("rank", "source")) == {(1, "replica"), (2, "custody")}
    assert [str(gone.pk)] in stops


def test_an_agent_that_does_not_know_a_rank_yet_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clockwork(monkeypatch)
    job = with_one_that_is_not_there(world)
    late = world.rank(job, 1)
    assert unknown(world.agent_of(late)) == 1
    clock.pass_on(3.0)
    world.beat_all()
    clock.reconcile()

    assert world.rank(job, 1).state == WorkerState.RUNNING
    assert Order.objects.filter(kind="interrupt", node=late.node).count() == 2
    world.block(job, 1, at(184))
    assert Move.objects.get().rank == 2
