"""Routes of the pages. A region's address is its page's with its name behind it."""

from __future__ import annotations

from django.urls import path, register_converter

from .pages import account, fleet, guarantee, incidents, jobs, node, overview


class IncidentNumber:
    """INC-7 in addresses, 7 in views; a bare number is understood too."""

    regex = r"(?:INC-)?[0-9]{1,17}"

    def to_python(self, value: str) -> int:
        return int(value.removeprefix("INC-"))

    def to_url(self, value: int) -> str:
        return f"INC-{value}"


register_converter(IncidentNumber, "incident")

urlpatterns = [
    path("", overview.overview_page, name="overview"),
    path("regions/<str:name>", overview.overview_region, name="overview-region"),
    path("fleet", fleet.fleet_page, name="fleet"),
    path("fleet/regions/main", fleet.fleet_region, name="fleet-region"),
    path("nodes/<int:node_id>", node.node_page, name="node"),
    path("nodes/<int:node_id>/regions/main", node.node_region, name="node-region"),
    path("nodes/<int:node_id>/<str:action>", node.node_action, name="node-action"),
    path("jobs", jobs.jobs_page, name="jobs"),
    path("jobs/regions/list", jobs.jobs_region, name="jobs-region"),
    path("jobs/<int:job_id>", jobs.job_page, name="job"),
    path("jobs/<int:job_id>/regions/<str:name>", jobs.job_region, name="job-region"),
    path("incidents", incidents.incidents_page, name="incidents"),
    path("incidents/regions/list", incidents.incidents_region, name="incidents-region"),
    path("incidents/<incident:incident_id>", incidents.incident_page_view, name="incident"),
    path(
        "incidents/<incident:incident_id>/regions/<str:name>",
        incidents.incident_region,
        name="incident-region",
    ),
    path("incidents/<incident:incident_id>/raw", incidents.incident_raw, name="incident-raw"),
    path("guarantee", guarantee.guarantees_page, name="guarantees"),
    path("guarantee/<int:contract_id>", guarantee.guarantee_page, name="guarantee"),
    path(
        "guarantee/<int:contract_id>/regions/main",
        guarantee.guarantee_region,
        name="guarantee-region",
    ),
    path("search", account.search, name="search"),
    path("preferences", account.preferences, name="preferences"),
]
