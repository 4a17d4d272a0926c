"""What every page has around it: who looks, the menu, the time zone, the theme, the live topics."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, cast

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from yoco_platform.core import clock
from yoco_platform.core.auth import CUSTOMER_ROLES, Permission, Viewer, may, viewer_of
from yoco_platform.core.errors import DomainError, NotFound, Unauthenticated
from yoco_platform.core.models import Cluster

from .notices import sequence_now
from .preferences import ZONES, keys_of, theme_of, zone_of
from .queries.visible import incidents_open

P = ParamSpec("P")
Decorated = Callable[Concatenate[HttpRequest, P], HttpResponse]


@dataclass(frozen=True)
class Item:
    """One entry of the menu."""

    name: str
    route: str
    icon: str
    key: str
    permission: Permission


MENU = (
    Item("Overview", "overview", "overview", "o", Permission.JOB_READ),
    Item("Fleet", "fleet", "fleet", "f", Permission.FLEET_READ),
    Item("Jobs", "jobs", "jobs", "j", Permission.JOB_READ),
    Item("Incidents", "incidents", "incidents", "i", Permission.INCIDENT_READ),
    Item("Guarantee", "guarantees", "guarantee", "c", Permission.COVERAGE_READ),
)


@dataclass(frozen=True)
class Page:
    """A page to show. ``topics`` are what its socket listens to; ``crumbs`` are (words, address)."""

    title: str
    section: str
    template: str
    context: dict[str, Any]
    topics: list[str]
    crumbs: list[tuple[str, str]] = field(default_factory=list)
    is_demo: bool = False
    zone: str = ""
    """The zone of a page that has its own (a contract's), whatever the reader chose."""


def page_view(
    view: Callable[Concatenate[HttpRequest, Viewer, P], Page | HttpResponse],
) -> Decorated[P]:
    """A view that is given the viewer and returns a Page. Sign-in and errors are answered here."""

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        sequence = sequence_now()
        try:
            viewer = viewer_of(request)
        except Unauthenticated:
            return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
        with timezone.override(zone_of(request)):
            try:
                page = view(request, viewer, *args, **kwargs)
            except DomainError as error:
                return error_page(request, viewer, error)
            return page if isinstance(page, HttpResponse) else show(request, viewer, page, sequence)

    return cast("Decorated[P]", require_GET(wrapped))


def show(
    request: HttpRequest, viewer: Viewer, page: Page, sequence: int, status: int = 200
) -> HttpResponse:
    """The page in its frame. ``sequence`` was read before the data: the socket replays from there."""
    context = {
        **page.context,
        "page": page,
        "viewer": viewer,
        "menu": [item for item in MENU if _in_menu(viewer, item)],
        "active_incidents": _active_incidents(viewer),
        "clusters": _cluster_names(viewer),
        "zone": zone_of(request).key,
        "zones": ZONES,
        "theme": theme_of(request),
        "keys": keys_of(request),
        "now": clock.now(),
        "sequence": sequence,
        "csrf": get_token(request),
        "public_url": settings.PUBLIC_URL,
        "version": _version(),
        "is_customer": viewer.role in CUSTOMER_ROLES,
    }
    return render(request, page.template, context, status=status)


def region_view(
    view: Callable[Concatenate[HttpRequest, Viewer, P], tuple[str, dict[str, Any]]],
) -> Decorated[P]:
    """A view of one region of a page: a fragment with an ETag, 304 when nothing changed.

    A fragment is never a redirect: 401 tells the page that its reader has signed out.
    """

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            viewer = viewer_of(request)
            with timezone.override(zone_of(request)):
                template, context = view(request, viewer, *args, **kwargs)
                context = {**context, "viewer": viewer, "public_url": settings.PUBLIC_URL}
                context["is_customer"] = viewer.role in CUSTOMER_ROLES
                response = render(request, template, context)
        except DomainError as error:
            return _region_error(error)
        etag = f'"{hashlib.sha256(response.content).hexdigest()[:24]}"'
        if request.headers.get("If-None-Match") == etag:
            response = HttpResponse(status=304)
        response["ETag"] = etag
        response["Vary"] = "HX-Request, Cookie"
        response["Cache-Control"] = "no-store"
        return response

    return cast("Decorated[P]", require_GET(wrapped))


def action_view(
    view: Callable[Concatenate[HttpRequest, Viewer, P], HttpResponse],
) -> Decorated[P]:
    """A view that takes a POST from a form; what it refuses is shown as a page."""

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            viewer = viewer_of(request)
        except Unauthenticated:
            return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
        try:
            return view(request, viewer, *args, **kwargs)
        except DomainError as error:
            return error_page(request, viewer, error)

    return cast("Decorated[P]", require_POST(wrapped))


Region = tuple[str, Callable[..., dict[str, Any]]]
"""Template of a region and the function that gathers what it shows."""


def region_of(regions: dict[str, Region], name: str) -> Region:
    """Raises NotFound for a name that the page does not have."""
    if name not in regions:
        raise NotFound(f"there is no region {name}")
    return regions[name]


def _region_error(error: DomainError) -> HttpResponse:
    return HttpResponse(str(error), status=error.status, content_type="text/plain; charset=utf-8")


def error_page(request: HttpRequest, viewer: Viewer, error: DomainError) -> HttpResponse:
    """Forbidden, not found and the like, each in its own words."""
    words = {403: "You cannot see this", 404: "There is nothing here"}
    headline = words.get(error.status, "This did not work")
    if error.code == "ledger_broken":
        headline = "The ledger does not hold"
    page = Page(headline, "", "error.html", {"error": error, "headline": headline}, [])
    return show(request, viewer, page, sequence_now(), status=error.status)


@functools.cache
def _version() -> str:
    try:
        return importlib.metadata.version("yoco")
    except importlib.metadata.PackageNotFoundError:
        return "development"


def _in_menu(viewer: Viewer, item: Item) -> bool:
    if item.route == "fleet" and viewer.role in CUSTOMER_ROLES:
        return False
    return may(viewer, item.permission)


def _active_incidents(viewer: Viewer) -> int:
    return incidents_open(viewer).count() if may(viewer, Permission.INCIDENT_READ) else 0


def _cluster_names(viewer: Viewer) -> list[str]:
    clusters = Cluster.objects.all()
    if viewer.cluster_id is not None:
        clusters = clusters.filter(pk=viewer.cluster_id)
    return [] if viewer.role in CUSTOMER_ROLES else [cluster.name for cluster in clusters]
