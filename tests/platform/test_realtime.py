"""News is a row first; the hint follows the commit to whoever joined the topic's group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.db import transaction

from yoco_platform.core.courier import courier
from yoco_platform.core.models import OutboxNotice
from yoco_platform.core.realtime import (
    agent_group,
    bind_loop,
    group_of,
    publish_on_commit,
    ring_agent_on_commit,
)

pytestmark = pytest.mark.django_db(transaction=True)


async def _listen(group: str) -> tuple[Any, str]:
    layer = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(group, channel)
    return layer, channel


@pytest.fixture
def server_loop() -> Any:
    yield bind_loop
    bind_loop(None)


def _publish() -> int:
    with transaction.atomic():
        notice = publish_on_commit("job:7", "step", {"step": 3})
        ring_agent_on_commit(11)
    return notice.pk


async def test_a_committed_notice_reaches_the_group(server_loop: Any) -> None:
    server_loop(asyncio.get_running_loop())
    layer, channel = await _listen(group_of("job:7"))
    number = await database_sync_to_async(_publish)()
    message = await asyncio.wait_for(layer.receive(channel), 5)
    assert {key: message[key] for key in ("type", "id", "topic", "kind", "data")} == {
        "type": "notice",
        "id": number,
        "topic": "job:7",
        "kind": "step",
        "data": {"step": 3},
    }


async def test_a_doorbell_reaches_its_agent_and_no_other(server_loop: Any) -> None:
    server_loop(asyncio.get_running_loop())
    layer, channel = await _listen(agent_group(11))
    _, other = await _listen(agent_group(12))
    await database_sync_to_async(_publish)()
    assert await asyncio.wait_for(layer.receive(channel), 5) == {"type": "ring"}
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(layer.receive(other), 0.1)


def test_a_rolled_back_notice_is_no_news() -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        publish_on_commit("job:7", "step")
        raise RuntimeError
    assert OutboxNotice.objects.count() == 0


def test_the_sequence_rises() -> None:
    first = publish_on_commit("overview", "a")
    second = publish_on_commit("fleet", "b")
    assert second.pk > first.pk
    assert list(OutboxNotice.objects.values_list("topic", flat=True)) == ["overview", "fleet"]


@pytest.mark.redis
def test_a_redis_that_is_away_holds_up_no_request(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    from yoco_platform.core import realtime

    def away() -> Any:
        raise ConnectionError("no Redis")

    monkeypatch.setattr(realtime, "_redis_client", away)
    monkeypatch.setattr(courier, "_quiet_s", 0.0)
    publish_on_commit("overview", "a")
    assert courier.flush()
    assert OutboxNotice.objects.count() == 1
