"""What an agent may ask of the nodes app. Its heartbeat carries orders and is in jobs/agent_apis.py."""

from __future__ import annotations

from django.http import HttpRequest

from agent.protocol import EnrollReply, EnrollRequest
from yoco_platform.core.thin import agent_route

from . import services
from .errors import TokenRefused


def bearer(request: HttpRequest) -> str:
    """The token of an agent's request. Raises TokenRefused when there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise TokenRefused("present the token as 'Authorization: Bearer ...'")
    return token


@agent_route(EnrollRequest)
def enroll(request: HttpRequest, message: EnrollRequest) -> EnrollReply:
    return services.node_enroll(token=bearer(request), request=message)
