"""Zero characters in what agents say: PostgreSQL cannot hold them, and a failure must still be seen."""

from __future__ import annotations

import pytest

from agent import protocol
from jobs.models import AgentEvent, Incident, Order, StateDigest, Worker
from jobs.states import OrderState, WorkerState

from .situations import at
from .world import World, who

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_a_zero_in_last_words_does_not_hide_the_failure(world: World) -> None:
    job = world.trained()
    killed = world.kill(job, 2, at(184), detail="ValueError: a\0b")

    assert Worker.objects.get(pk=killed.pk).state == WorkerState.EXITED
    assert Worker.objects.get(pk=killed.pk).detail == "ValueError: a\ufffdb"
    assert Incident.objects.get().ranks == [2]
    assert AgentEvent.objects.latest("pk").body["detail"] == "ValueError: a\ufffdb"


def test_a_zero_in_a_digest_or_an_answer_is_stored_without_it(world: World) -> None:
    job = world.trained()
    worker = world.rank(job, 0)
    agent = world.agent_of(worker)
    agent.report(
        protocol.StateDigest(**who(worker), rank=0, step=184, digest="d\0", trail_head="t\0")
    )
    world.kill(job, 2, at(184))
    agent.beat()
    (order,) = agent.orders
    response = agent.answer(order, ok=False, code="a\0", message="b\0")
    row = Order.objects.get(pk=order.order_id)

    assert StateDigest.objects.get(step=184).digest == "d\ufffd"
    assert response.status_code == 200
    assert (row.state, row.code, row.message) == (OrderState.FAILED, "a\ufffd", "b\ufffd")
