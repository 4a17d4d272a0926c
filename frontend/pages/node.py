"""One node, and what a person may do to it."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from jobs import services as job_services
from nodes import selectors, services
from yoco_platform.core import clock
from yoco_platform.core.auth import Viewer
from yoco_platform.core.errors import Conflict, Forbidden, Invalid, NotFound

from .. import svg
from ..entered import text_of
from ..queries.node import node_page as gather
from ..queries.visible import sees_fleet
from ..shell import Page, action_view, page_view, region_view

ACTIONS = {
    "drain": services.node_drain,
    "cordon": services.node_cordon,
    "quarantine": services.node_quarantine,
    "release": services.node_release,
    "retire": job_services.node_retire,
}


def main(viewer: Viewer, node_id: int) -> dict[str, Any]:
    if not sees_fleet(viewer):
        raise Forbidden("Machines are shown to people who operate them.")
    data = gather(viewer, node_id, clock.now())
    return {"data": data, "lanes": [(lane, svg.lane(lane.spans)) for lane in data.lanes]}


@page_view
def node_page(request: HttpRequest, viewer: Viewer, node_id: int) -> Page:
    context = main(viewer, node_id)
    node = context["data"].node
    crumbs = [("Fleet", reverse("fleet")), (node.rack, f"{reverse('fleet')}#rack-{node.rack}")]
    topics = [f"node:{node.pk}"]
    demo = any(row.is_demo for row in context["data"].incidents) or any(
        worker.job.is_demo for worker in context["data"].workers
    )
    return Page(node.name, "fleet", "node/page.html", context, topics, crumbs, is_demo=demo)


@region_view
def node_region(request: HttpRequest, viewer: Viewer, node_id: int) -> tuple[str, dict[str, Any]]:
    return "node/_main.html", main(viewer, node_id)


@action_view
def node_action(request: HttpRequest, viewer: Viewer, node_id: int, action: str) -> HttpResponse:
    """Drain, cordon, quarantine, release or retire, with a reason; the node page says what came of it."""
    if action not in ACTIONS:
        raise NotFound(f"there is no action {action}")
    node = selectors.node_get(viewer, node_id)
    try:
        reason = text_of(request.POST.get("reason", ""))
        ACTIONS[action](viewer=viewer, node=node, reason=reason)
    except (Conflict, Invalid) as error:
        messages.error(request, str(error))
    return redirect("node", node_id=node_id)
