from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator

from jobs.consumers import DoorbellConsumer
from yoco_platform.core import realtime

from .world import World

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.asyncio]


def socket(token: str | None) -> WebsocketCommunicator:
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return WebsocketCommunicator(DoorbellConsumer.as_asgi(), "/agent/v1/doorbell", headers=headers)


@pytest.mark.parametrize("token", [None, "", "guess"])
async def test_without_a_node_token_the_door_stays_shut(token: str | None) -> None:
    opened, code = await socket(token).connect()

    assert (opened, code) == (False, 4401)


async def test_it_rings_at_once_and_then_for_its_own_node_only() -> None:
    world = await sync_to_async(lambda: World(num_nodes=2))()
    bell = socket(world.agents[0].token)
    opened, _ = await bell.connect()
    assert opened
    assert await bell.receive_from() == "ring"
    layer = realtime.get_channel_layer()
    await layer.group_send(realtime.agent_group(world.agents[1].node.pk), {"type": "ring"})
    assert await bell.receive_nothing(timeout=0.3)
    await layer.group_send(realtime.agent_group(world.agents[0].node.pk), {"type": "ring"})
    assert await bell.receive_from(timeout=3) == "ring"
    await bell.disconnect()
