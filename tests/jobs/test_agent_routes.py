"""What a broken or foreign agent may not do, and what a good one gets."""

from __future__ import annotations

import msgspec
import pytest
from django.db import InterfaceError, OperationalError
from django.test import RequestFactory
from django.urls import resolve

from agent import protocol
from jobs.models import AgentEvent, Order, Worker
from jobs.services import events as event_services
from jobs.states import OrderState
from nodes import selectors
from nodes.models import Node

from .situations import at
from .world import World, exited, who

pytestmark = pytest.mark.django_db


def raw(world: World, path: str, body: bytes, token: str = "") -> tuple[int, str]:
    request = RequestFactory().post(
        f"/agent/v1/{path}",
        data=body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {token or world.agents[0].token}"},
    )
    view, arguments, named = resolve(request.path, "yoco_platform.agent_urls")
    response = view(request, *arguments, **named)
    return response.status_code, msgspec.json.decode(response.content).get("code", "")


@pytest.mark.parametrize("path", ["heartbeat", "events", "orders/x/result"])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 422, "bad_message"),
        (b"[]", 422, "bad_message"),
        (b'{"protocol": 1, "colour": "red"}', 422, "bad_message"),
        (b'{"protocol": 99}', 426, "protocol_not_spoken"),
    ],
    ids=["cut off", "no object", "unknown field", "another protocol"],
)
def test_a_body_that_is_not_ours_is_refused_by_code(
    world: World, path: str, body: bytes, status: int, code: str
) -> None:
    assert raw(world, path, body) == (status, code)
    assert not AgentEvent.objects.exists()


def test_a_wrong_token_is_refused_everywhere(world: World) -> None:
    beat = msgspec.json.encode(
        protocol.HeartbeatRequest(boot_id="b", sequence=1, inventory_hash="h")
    )
    batch = msgspec.json.encode(protocol.EventBatch(boot_id="b", events=[]))

    assert raw(world, "heartbeat", beat, token="guess")[0] == 401
    assert raw(world, "events", batch, token="guess")[0] == 401


def test_a_token_that_was_revoked_is_refused_at_once(world: World) -> None:
    agent = world.agents[0]
    agent.beat()
    Node.objects.filter(pk=agent.node.pk).update(token_hash="other")
    response = agent.post("events", protocol.EventBatch(boot_id="b", events=[]))

    assert response.status_code == 401
    selectors.forget_remembered()


def test_an_agent_cannot_speak_for_a_worker_of_another_node(world: World) -> None:
    job = world.trained()
    worker = world.rank(job, 0)
    other = world.agent_of(world.rank(job, 1))
    other.report(exited(worker, at(184)))

    assert AgentEvent.objects.latest("pk").refused_code == "not_your_worker"
    worker.refresh_from_db()
    assert worker.state == "running"


def test_an_agent_cannot_answer_an_order_of_another_node(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184))
    owner, other = world.agent_of(world.rank(job, 0)), world.agent_of(world.rank(job, 1))
    owner.beat()
    (order,) = owner.orders
    response = other.answer(order, ok=True)

    assert response.status_code == 404
    assert msgspec.json.decode(response.content)["code"] == "order_unknown"
    assert Order.objects.get(pk=order.order_id).state == OrderState.SENT


def test_a_batch_that_is_too_long_is_refused_whole(world: World) -> None:
    job = world.trained()
    worker = world.rank(job, 0)
    agent = world.agent_of(worker)
    before = AgentEvent.objects.count()
    many = agent.events(*(protocol.Checkpointed(**who(worker), rank=0, step=n) for n in range(201)))

    assert agent.post("events", many).status_code == 422
    assert AgentEvent.objects.count() == before


def test_orders_travel_back_with_the_report_that_made_them(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184))
    world.block(job, 0, at(184))
    last = world.agent_of(world.rank(job, 1))
    last.orders = []
    world.block(job, 1, at(184))

    assert [type(order.body).__name__ for order in last.orders] == ["RegroupOrder"]


def test_an_order_is_handed_out_again_until_it_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .clockwork import Clockwork

    clock = Clockwork(monkeypatch)
    job = world.trained()
    world.kill(job, 2, at(184))
    agent = world.agent_of(world.rank(job, 0))
    agent.beat()
    agent.beat()
    assert len(agent.orders) == 1
    clock.pass_on(6.0)
    agent.beat()
    assert len({order.order_id for order in agent.orders}) == 1
    assert len(agent.orders) == 2
    agent.answer(agent.orders[0], ok=True)
    clock.pass_on(6.0)
    agent.beat()
    assert len(agent.orders) == 2


def test_an_order_past_its_deadline_is_not_handed_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .clockwork import Clockwork

    clock = Clockwork(monkeypatch)
    job = world.trained()
    world.kill(job, 2, at(184))
    clock.pass_on(61.0)
    agent = world.agent_of(world.rank(job, 0))
    agent.beat()

    assert agent.orders == []


@pytest.mark.parametrize(
    "error", [OperationalError("deadlock detected"), InterfaceError("connection already closed")]
)
def test_a_database_that_gives_way_loses_no_event(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    job = world.trained()
    worker = world.rank(job, 2)
    agent = world.agent_of(worker)
    batch = agent.events(*world.first_commit(job, worker, 185, 184), exited(worker, at(185)))

    def fails(report: object, body: object) -> None:
        raise error

    stored = AgentEvent.objects.count()
    with monkeypatch.context() as broken:
        broken.setitem(event_services.HANDLERS, protocol.RankExited, fails)
        status, code = raw(world, "events", msgspec.json.encode(batch), token=agent.token)
    assert (status, code) == (503, "events_not_taken")
    assert AgentEvent.objects.count() == stored
    job.refresh_from_db()
    assert job.committed_step == 184
    agent.send(batch)
    worker = Worker.objects.get(pk=worker.pk)
    job.refresh_from_db()

    assert (worker.state, job.committed_step) == ("exited", 185)
    assert AgentEvent.objects.filter(node=agent.node, refused_code="apply_failed").count() == 0


def test_a_bug_of_ours_loses_its_event_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.trained()
    worker = world.rank(job, 2)
    agent = world.agent_of(worker)

    def fails(report: object, body: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setitem(event_services.HANDLERS, protocol.RankExited, fails)
    agent.report(exited(worker, at(185)), *world.first_commit(job, worker, 185, 184))
    job.refresh_from_db()

    assert AgentEvent.objects.get(kind="rank_exited").refused_code == "apply_failed"
    assert job.committed_step == 185
