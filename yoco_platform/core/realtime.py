"""The one publisher of live news. The outbox row is the news; what goes over the channel layer is a hint.

Groups: ``group_of(topic)`` for pages, ``agent.<node id>`` for doorbells. Messages:
    {"type": "notice", "id": 7, "topic": "job:1", "kind": "step", "data": {...}, "at": "…Z"}
    {"type": "ring"}
A consumer joins groups and implements ``notice`` or ``ring``. Nothing else may call ``group_send``.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import redis
import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction

from . import clock
from .courier import courier
from .models import OutboxNotice

log = structlog.get_logger(__name__)

_server_loop: asyncio.AbstractEventLoop | None = None


def bind_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Name the server's event loop: the in-memory layer is not thread-safe and lives on it."""
    global _server_loop
    _server_loop = loop


def group_of(topic: str) -> str:
    """The channel-layer group of a topic: ``job:7`` -> ``topic.job.7``."""
    return "topic." + topic.replace(":", ".")


def agent_group(node_id: int) -> str:
    return f"agent.{node_id}"


def publish_on_commit(topic: str, kind: str, data: dict[str, Any] | None = None) -> OutboxNotice:
    """Write the notice in this transaction and, once it is committed, tell who listens to the topic.

    Topics: overview, fleet, node:<id>, job:<id>, incident:<id>, guarantee:<customer id>.
    """
    notice = OutboxNotice.objects.create(topic=topic, kind=kind, data=data or {}, at=clock.now())
    message = {
        "type": "notice",
        "id": notice.pk,
        "topic": topic,
        "kind": kind,
        "data": notice.data,
        "at": notice.at.isoformat().replace("+00:00", "Z"),
    }

    # A named function: Django's log line for a failed robust callback needs a __qualname__.
    def send_notice() -> None:
        send_to_group(group_of(topic), message)

    transaction.on_commit(send_notice, robust=True)
    return notice


def ring_agent_on_commit(node_id: int) -> None:
    """Ring one agent's doorbell once this transaction is committed: it has orders."""

    def ring_agent() -> None:
        send_to_group(agent_group(node_id), {"type": "ring"})

    transaction.on_commit(ring_agent, robust=True)


def send_to_group(group: str, message: dict[str, Any]) -> None:
    """Send a hint now. Neither blocks nor raises."""
    if settings.EMBEDDED:
        _send_in_process(group, message)
    else:
        courier.hand_over("publish", lambda: _publish_to_redis(group, message))


def _send_in_process(group: str, message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    loop = _server_loop
    if loop is not None and loop.is_running():
        asyncio.run_coroutine_threadsafe(layer.group_send(group, message), loop)
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        async_to_sync(layer.group_send)(group, message)
    else:
        log.warning(
            "hint_dropped", group=group, reason="published from a coroutine, no server loop"
        )


@cache
def _redis_client() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, **settings.REDIS_OPTIONS)


def _publish_to_redis(group: str, message: dict[str, Any]) -> None:
    # The layer's own wire: what its subscribers on any process decode.
    layer = get_channel_layer()
    channel = f"{settings.REDIS_PREFIX}__group__{group}"
    _redis_client().publish(channel, layer.serialize(message))
