"""Routes of the agents that the nodes app answers, under /agent/v1/."""

from __future__ import annotations

from django.urls import path

from . import agent_apis

urlpatterns = [path("enroll", agent_apis.enroll, name="agent-enroll")]
