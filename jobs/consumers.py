"""The doorbell of agents: a bare "you have orders". It looks, and never acts."""

from __future__ import annotations

from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from nodes.selectors import node_by_token
from yoco_platform.core.errors import DomainError
from yoco_platform.core.realtime import agent_group

REFUSED = 4401


class DoorbellConsumer(AsyncWebsocketConsumer):
    """Token in the Authorization header, no cookies. Sends ``ring`` and takes nothing."""

    async def connect(self) -> None:
        headers = dict(self.scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        try:
            if scheme.lower() != "bearer" or not token:
                raise PermissionError
            node = await database_sync_to_async(node_by_token)(token)
        except (DomainError, PermissionError):
            await self.close(code=REFUSED)
            return
        self.group = agent_group(node.pk)
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()
        # Orders may have been written while the line was down.
        await self.send(text_data="ring")

    async def disconnect(self, code: int) -> None:
        group = getattr(self, "group", None)
        if group is not None:
            await self.channel_layer.group_discard(group, self.channel_name)

    async def ring(self, _event: dict[str, Any]) -> None:
        await self.send(text_data="ring")
