"""Routes of the agents that the jobs app answers, under /agent/v1/."""

from __future__ import annotations

from django.urls import path

from . import agent_apis

urlpatterns = [
    path("heartbeat", agent_apis.heartbeat, name="agent-heartbeat"),
    path("events", agent_apis.events, name="agent-events"),
    path("orders/<str:order_id>/result", agent_apis.order_result, name="agent-order-result"),
]
