"""Routes of agents, below the thin handler."""

from __future__ import annotations

from django.urls import include, path

from yoco_platform import error_views

urlpatterns = [
    path("agent/v1/", include("nodes.agent_urls")),
    path("agent/v1/", include("jobs.agent_urls")),
]
handler404 = error_views.no_route
handler500 = error_views.failed
