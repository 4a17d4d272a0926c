"""Small doors of the frame: what a reader prefers, and the search box."""

from __future__ import annotations

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from jobs import selectors as job_reads
from nodes import selectors as node_reads
from yoco_platform.core.auth import Viewer

from ..entered import number_of, text_of
from ..preferences import KEYS, KEYS_COOKIE, THEME_COOKIE, THEMES, ZONE_COOKIE, ZONES
from ..queries.visible import sees_fleet
from ..shell import Page, action_view, page_view

YEAR_S = 365 * 24 * 3600
CHOICES = (
    ("zone", ZONE_COOKIE, ZONES),
    ("theme", THEME_COOKIE, THEMES),
    ("keys", KEYS_COOKIE, KEYS),
)
FOUND_MAX = 20

Found = tuple[str, str, str, str]
"""Kind, name, address, and the mark of what is no real machine or run."""


@action_view
def preferences(request: HttpRequest, viewer: Viewer) -> HttpResponse:
    """Keep a choice in a cookie and go back to where it was made."""
    target = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(target, {request.get_host()}, request.is_secure()):
        target = reverse("overview")
    response = redirect(target)
    for field, cookie, among in CHOICES:
        value = request.POST.get(field, "")
        if value in among:
            response.set_cookie(cookie, value, max_age=YEAR_S, samesite="Lax", httponly=True)
    return response


@page_view
def search(request: HttpRequest, viewer: Viewer) -> Page | HttpResponse:
    """Nodes, jobs and incidents by name; straight to the page when there is exactly one."""
    words = text_of(request.GET.get("q", ""))[:120]
    found: list[Found] = []
    if words:
        found = _incidents(viewer, words) + _jobs(viewer, words) + _nodes(viewer, words)
    if len(found) == 1:
        return redirect(found[0][2])
    shown = found[:FOUND_MAX]
    context = {"words": words, "found": shown, "num_found": len(found)}
    demo = any(mark == "demo" for *_, mark in shown)
    return Page("Search", "", "search.html", context, [], is_demo=demo)


def _incidents(viewer: Viewer, words: str) -> list[Found]:
    number = number_of(words.upper().removeprefix("INC-"))
    if number is None:
        return []
    rows = job_reads.incidents_visible(viewer).filter(pk=number)
    return [
        ("Incident", row.number, reverse("incident", args=[row.pk]), _demo(row.is_demo))
        for row in rows
    ]


def _jobs(viewer: Viewer, words: str) -> list[Found]:
    rows = job_reads.jobs_visible(viewer).filter(name__icontains=words)[: FOUND_MAX + 1]
    return [("Job", row.name, reverse("job", args=[row.pk]), _demo(row.is_demo)) for row in rows]


def _nodes(viewer: Viewer, words: str) -> list[Found]:
    if not sees_fleet(viewer):
        return []
    match = Q(name__icontains=words) | Q(hostname__icontains=words) | Q(gpus__uuid__iexact=words)
    rows = node_reads.nodes_list(viewer).filter(match).distinct()
    simulated = set(rows.filter(gpus__simulated=True).values_list("pk", flat=True)[:FOUND_MAX])
    return [
        (
            "Node",
            row.name,
            reverse("node", args=[row.pk]),
            "simulated" if row.pk in simulated else "",
        )
        for row in rows[: FOUND_MAX + 1]
    ]


def _demo(is_demo: bool) -> str:
    return "demo" if is_demo else ""
