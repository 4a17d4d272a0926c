"""Incidents: the list, and one of them while it happens and ever after."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse

from jobs import selectors
from jobs.states import CauseClass, Verdict
from yoco_platform.core import clock
from yoco_platform.core.auth import Viewer

from .. import svg
from ..entered import number_of
from ..queries.guarantee import entry_of_incident
from ..queries.incident import IncidentPage, incident_page
from ..queries.incident_log import events_of, log_of
from ..queries.visible import sees_fleet
from ..shell import Page, page_view, region_of, region_view
from ..words import SOURCE_WORDS, verdict_look
from .overview import topics_of

PER_PAGE = 50


def listing(viewer: Viewer, query: dict[str, str]) -> dict[str, Any]:
    """A page of incidents; ``verdict``, ``cause`` and ``before`` are in the address."""
    verdict, cause, before = (query.get(key, "") for key in ("verdict", "cause", "before"))
    every = selectors.incidents_visible(viewer)
    shown = every
    if verdict in Verdict.values:
        shown = shown.filter(verdict=verdict)
    if cause in CauseClass.values:
        shown = shown.filter(cause_class=cause)
    paged = shown
    if (last := number_of(before)) is not None:
        paged = paged.filter(pk__lt=last)
    rows = list(paged.order_by("-pk")[: PER_PAGE + 1])
    counts = Counter(every.order_by().values_list("verdict", flat=True))
    return {
        "rows": rows[:PER_PAGE],
        "next": rows[PER_PAGE - 1].pk if len(rows) > PER_PAGE else None,
        "verdict": verdict,
        "cause": cause,
        "chips": [(value, verdict_look(value), counts[value]) for value in Verdict.values],
        "num_shown": shown.count(),
        "num_all": every.count(),
        "lost_steps": sum(row.lost_steps or 0 for row in rows[:PER_PAGE]),
        "query": "&".join(
            f"{key}={value}" for key, value in (("cause", cause), ("verdict", verdict)) if value
        ),
    }


@page_view
def incidents_page(request: HttpRequest, viewer: Viewer) -> Page:
    context = listing(viewer, request.GET.dict())
    context["topic_list"] = " ".join(topics_of(viewer))
    demo = any(row.is_demo for row in context["rows"])
    return Page(
        "Incidents", "incidents", "incidents/page.html", context, topics_of(viewer), is_demo=demo
    )


@region_view
def incidents_region(request: HttpRequest, viewer: Viewer) -> tuple[str, dict[str, Any]]:
    return "incidents/_list.html", listing(viewer, request.GET.dict())


def head(viewer: Viewer, incident_id: int) -> dict[str, Any]:
    data = incident_page(viewer, incident_id, clock.now())
    last = data.running or next((s for s in reversed(data.stages) if s.began_s is not None), None)
    done = sum(stage.ended_s is not None for stage in data.stages)
    return {
        "data": data,
        "incident": data.incident,
        "stage": last,
        "steps_bar": svg.stage_steps(done, 0.5 if data.live else None),
        "links_nodes": sees_fleet(viewer),
    }


def stages(viewer: Viewer, incident_id: int) -> dict[str, Any]:
    data = incident_page(viewer, incident_id, clock.now())
    return {
        "data": data,
        "incident": data.incident,
        "stages": _drawn(data),
        "ticks": _ticks(data),
        "log": log_of(data.incident),
        "sources": SOURCE_WORDS,
        "links_nodes": sees_fleet(viewer),
    }


def _drawn(data: IncidentPage) -> list[tuple[Any, Any, list[tuple[int, Any, Any]]]]:
    """(stage, its bar, its streams with theirs). Any: SVG text and rows of the query."""
    now = data.elapsed_s if data.live else None
    row = functools.partial(svg.stage_row, span_s=data.span_s, tick_s=data.tick_s, now_s=now)
    return [
        (
            stage,
            row(began_s=stage.began_s, ended_s=stage.ended_s),
            [
                (rank, stream, row(began_s=stream.began_s, ended_s=stream.ended_s, thin=True))
                for rank, stream in stage.streams
            ],
        )
        for stage in data.stages
    ]


def _ticks(data: IncidentPage) -> list[float]:
    count = round(data.span_s / data.tick_s)
    return [data.tick_s * index for index in range(count + 1)]


def proof(viewer: Viewer, incident_id: int) -> dict[str, Any]:
    data = incident_page(viewer, incident_id, clock.now())
    return {
        "data": data,
        "incident": data.incident,
        "verdict": verdict_look(data.incident.verdict),
        "entry": entry_of_incident(viewer, data.incident),
        "links_nodes": sees_fleet(viewer),
    }


REGIONS = {
    "head": ("incident/_head.html", head),
    "stages": ("incident/_stages.html", stages),
    "proof": ("incident/_proof.html", proof),
}


@page_view
def incident_page_view(request: HttpRequest, viewer: Viewer, incident_id: int) -> Page:
    context = {
        **proof(viewer, incident_id),
        **stages(viewer, incident_id),
        **head(viewer, incident_id),
        **_neighbours(viewer, incident_id),
    }
    incident = context["incident"]
    return Page(
        incident.number,
        "incidents",
        "incident/page.html",
        context,
        [f"incident:{incident.pk}", f"job:{incident.job_id}"],
        [("Incidents", reverse("incidents"))],
        is_demo=incident.is_demo,
    )


def _neighbours(viewer: Viewer, incident_id: int) -> dict[str, Any]:
    every = selectors.incidents_visible(viewer)
    return {
        "previous": every.filter(pk__lt=incident_id).order_by("-pk").first(),
        "following": every.filter(pk__gt=incident_id).order_by("pk").first(),
    }


@region_view
def incident_region(
    request: HttpRequest, viewer: Viewer, incident_id: int, name: str
) -> tuple[str, dict[str, Any]]:
    template, gather = region_of(REGIONS, name)
    return template, gather(viewer, incident_id)


@page_view
def incident_raw(request: HttpRequest, viewer: Viewer, incident_id: int) -> HttpResponse:
    """The agents' events of the incident as they were reported, and how they were judged."""
    incident = selectors.incident_get(viewer, incident_id)
    events = [
        {
            "node": event.node.name,
            "boot_id": event.boot_id,
            "sequence": event.sequence,
            "kind": event.kind,
            "occurred_at": event.occurred_at,
            "received_at": event.received_at,
            "refused_code": event.refused_code,
            "body": event.body,
        }
        for event in events_of(incident, limit=1000)
    ]
    body = {"incident": incident.number, "evidence": incident.evidence, "events": events}
    return JsonResponse(body, json_dumps_params={"indent": 1})
