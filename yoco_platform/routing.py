"""Which door a connection goes through."""

from __future__ import annotations

from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.urls import path

from frontend.consumers import LiveConsumer
from jobs.consumers import DoorbellConsumer
from yoco_platform.doors import BodyLimit, HttpDoor, SocketDoor, thin_application
from yoco_platform.lifespan import Lifespan, Start

AGENT_PREFIX = "/agent/v1/"


def compose(django_application: Any, *starts: Start) -> ProtocolTypeRouter:
    """The whole application around Django's own; ``starts`` live as long as the server."""
    agents = URLRouter([path("agent/v1/doorbell", DoorbellConsumer.as_asgi())])
    browsers = AllowedHostsOriginValidator(
        AuthMiddlewareStack(URLRouter([path("ws/live", LiveConsumer.as_asgi())]))
    )
    return ProtocolTypeRouter(
        {
            "http": BodyLimit(
                HttpDoor(AGENT_PREFIX, thin_application(), django_application),
                settings.BODY_BYTES_MAX,
            ),
            # Agents authenticate by token in their consumer; no cookie is even looked at.
            "websocket": SocketDoor(AGENT_PREFIX, agents, browsers),
            "lifespan": Lifespan(*starts),
        }
    )
