"""REST routes of the training runs, under /api/v1/."""

from __future__ import annotations

from django.urls import path

from . import apis

urlpatterns = [
    path("jobs", apis.JobListApi.as_view(), name="job-list"),
    path("jobs/<int:job_id>", apis.JobDetailApi.as_view(), name="job-detail"),
    path("jobs/<int:job_id>/cancel", apis.JobCancelApi.as_view(), name="job-cancel"),
    path(
        "jobs/<int:job_id>/release-state",
        apis.JobStateReleaseApi.as_view(),
        name="job-state-release",
    ),
    path("jobs/<int:job_id>/transitions", apis.JobTransitionsApi.as_view(), name="job-transitions"),
    path("jobs/<int:job_id>/points", apis.JobPointsApi.as_view(), name="job-points"),
    path("jobs/<int:job_id>/digests", apis.JobDigestsApi.as_view(), name="job-digests"),
    path("nodes/<int:node_id>/retire", apis.NodeRetireApi.as_view(), name="node-retire"),
    path("incidents", apis.IncidentListApi.as_view(), name="incident-list"),
    path("incidents/<int:incident_id>", apis.IncidentDetailApi.as_view(), name="incident-detail"),
    path("migrations", apis.MigrationListApi.as_view(), name="migration-list"),
    path(
        "migrations/<int:migration_id>",
        apis.MigrationDetailApi.as_view(),
        name="migration-detail",
    ),
]
