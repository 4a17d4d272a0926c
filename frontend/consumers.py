"""The one socket of a page: it forwards what changed, never how it looks (docs/frontend.md).

    -> {"sub": ["job:42"], "since": 81234}     <- {"hello": {"seq": 81240, "topics": [...], "interval": 5}}
    <- {"n": 81241, "t": "job:42", "k": "point", "at": "…Z", "d": {...}}
    <- {"gap": true, "t": "job:42"}            read again over GET: notices were missed
    <- {"beat": 1}                             every ``BEAT_S``: the connection lives

Nothing that changes state goes through it. Close codes: 4400 bad message, 4401 signed out,
4408 too many messages, 4429 too many sockets.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from typing import Any, ClassVar

import structlog
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from yoco_platform.core.auth import Viewer, viewer_of
from yoco_platform.core.errors import Unauthenticated
from yoco_platform.core.realtime import group_of

from .notices import Missed, notices_missed
from .topics import TOPIC_CHARS_MAX, TOPICS_MAX, topics_allowed

log = structlog.get_logger(__name__)

BEAT_S = 5.0
RECHECK_S = 60.0
SOCKETS_PER_USER_MAX = 8
QUEUE_MAX = 64
INBOUND_BYTES_MAX = 16 * 1024
INBOUND_PER_S_MAX = 20


class LiveConsumer(AsyncWebsocketConsumer):
    """One browser tab. Joins the groups of its topics and writes from a bounded queue."""

    sockets: ClassVar[Counter[int]] = Counter()

    async def connect(self) -> None:
        self.viewer: Viewer | None = None
        self.topics: list[str] = []
        self.queue: deque[dict[str, Any]] = deque()
        self.gaps: dict[str, None] = {}
        self.awake = asyncio.Event()
        self.inbound: deque[float] = deque(maxlen=INBOUND_PER_S_MAX)
        self.pumps: list[asyncio.Task[None]] = []
        try:
            self.viewer = await database_sync_to_async(viewer_of)(self.scope)
        except Unauthenticated:
            await self.close(code=4401)
            return
        self.user_id = self.viewer.user_id or 0
        if self.sockets[self.user_id] >= SOCKETS_PER_USER_MAX:
            self.viewer = None
            await self.accept(self._subprotocol())
            await self.close(code=4429)
            return
        self.sockets[self.user_id] += 1
        await self.accept(self._subprotocol())
        self.pumps = [
            asyncio.create_task(self._write()),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._recheck()),
        ]

    def _subprotocol(self) -> str | None:
        return "v1" if "v1" in self.scope.get("subprotocols", []) else None

    async def disconnect(self, code: int) -> None:
        for pump in self.pumps:
            pump.cancel()
        for topic in self.topics:
            await self.channel_layer.group_discard(group_of(topic), self.channel_name)
        if self.viewer is not None:
            self.sockets[self.user_id] -= 1
            self.viewer = None

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        now = time.monotonic()
        if len(self.inbound) == INBOUND_PER_S_MAX and now - self.inbound[0] < 1.0:
            await self.close(code=4408)
            return
        self.inbound.append(now)
        wanted = _subscription(text_data)
        if wanted is None or self.viewer is None:
            await self.close(code=4400)
            return
        await self._subscribe(*wanted)

    async def _subscribe(self, topics: list[str], since: int | None) -> None:
        """Join first, then read what was missed: a notice between the two is seen twice, never not."""
        assert self.viewer is not None
        allowed = await database_sync_to_async(topics_allowed)(self.viewer, topics)
        for topic in self.topics:
            if topic not in allowed:
                await self.channel_layer.group_discard(group_of(topic), self.channel_name)
        for topic in allowed:
            if topic not in self.topics:
                await self.channel_layer.group_add(group_of(topic), self.channel_name)
        self.topics = allowed
        missed: Missed = await database_sync_to_async(notices_missed)(allowed, since)
        hello = {"seq": missed.sequence, "topics": allowed, "interval": BEAT_S}
        await self._send({"hello": hello})
        for topic in missed.gaps:
            await self._send({"gap": True, "t": topic})
        for notice in missed.notices:
            await self._send(notice)

    async def notice(self, message: dict[str, Any]) -> None:
        """A message of core.realtime for one of this socket's groups."""
        topic = message["topic"]
        if topic not in self.topics:
            return
        if len(self.queue) >= QUEUE_MAX:
            # A tab that does not read loses the numbers, not the news: it is told to read again.
            self.gaps.update(dict.fromkeys(entry["t"] for entry in self.queue))
            self.gaps[topic] = None
            self.queue.clear()
        else:
            self.queue.append(
                {
                    "n": message["id"],
                    "t": topic,
                    "k": message["kind"],
                    "at": message["at"],
                    "d": message["data"],
                }
            )
        self.awake.set()

    async def _write(self) -> None:
        while True:
            await self.awake.wait()
            self.awake.clear()
            while self.queue or self.gaps:
                if self.gaps:
                    topic = next(iter(self.gaps))
                    del self.gaps[topic]
                    await self._send({"gap": True, "t": topic})
                else:
                    await self._send(self.queue.popleft())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self._send({"beat": 1})

    async def _recheck(self) -> None:
        """A person who signed out, was locked or got another role hears nothing after a minute."""
        while True:
            await asyncio.sleep(RECHECK_S)
            if not await self._still_here():
                await self.close(code=4401)
                return

    async def _still_here(self) -> bool:
        session = self.scope.get("session")
        if session is None or not await database_sync_to_async(session.exists)(session.session_key):
            return False
        self.scope["user"] = await get_user(self.scope)
        try:
            return bool(await database_sync_to_async(viewer_of)(self.scope) == self.viewer)
        except Unauthenticated:
            return False

    async def _send(self, message: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(message, separators=(",", ":")))


def _subscription(text: str | None) -> tuple[list[str], int | None] | None:
    """Topics and sequence of a subscribe message, or None when it is not one."""
    if text is None or len(text) > INBOUND_BYTES_MAX:
        return None
    try:
        message = json.loads(text)
    except ValueError:
        return None
    if not isinstance(message, dict) or not message.keys() <= {"sub", "since"}:
        return None
    topics, since = message.get("sub"), message.get("since")
    if not isinstance(topics, list) or len(topics) > TOPICS_MAX:
        return None
    if not all(isinstance(topic, str) and len(topic) <= TOPIC_CHARS_MAX for topic in topics):
        return None
    if since is not None and (type(since) is not int or not 0 <= since < 2**63):
        return None
    return topics, since
