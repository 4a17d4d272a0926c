"""REST routes of the machines, under /api/v1/."""

from __future__ import annotations

from django.urls import path

from . import apis

urlpatterns = [
    path("nodes", apis.NodeListApi.as_view(), name="node-list"),
    path("nodes/<int:node_id>", apis.NodeDetailApi.as_view(), name="node-detail"),
    path(
        "nodes/<int:node_id>/transitions",
        apis.NodeTransitionsApi.as_view(),
        name="node-transitions",
    ),
    path("nodes/<int:node_id>/findings", apis.NodeFindingsApi.as_view(), name="node-findings"),
    path("nodes/<int:node_id>/drain", apis.NodeDrainApi.as_view(), name="node-drain"),
    path("nodes/<int:node_id>/cordon", apis.NodeCordonApi.as_view(), name="node-cordon"),
    path(
        "nodes/<int:node_id>/quarantine", apis.NodeQuarantineApi.as_view(), name="node-quarantine"
    ),
    path("nodes/<int:node_id>/release", apis.NodeReleaseApi.as_view(), name="node-release"),
    path("enrollment-tokens", apis.EnrollmentTokensApi.as_view(), name="enrollment-tokens"),
    path("health-policy", apis.HealthPolicyApi.as_view(), name="health-policy"),
    path("breakers", apis.BreakerListApi.as_view(), name="breaker-list"),
    path("breakers/<int:breaker_id>/reset", apis.BreakerResetApi.as_view(), name="breaker-reset"),
]
