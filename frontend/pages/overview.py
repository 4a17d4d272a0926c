"""The overview: is anything wrong, is the promise safe."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from yoco_platform.core import clock
from yoco_platform.core.auth import Viewer

from .. import svg
from ..queries.feed import feed
from ..queries.fleet import fleet
from ..queries.guarantee import standings
from ..queries.overview import job_rows, overview
from ..queries.visible import jobs_live, sees_fleet
from ..shell import Page, page_view, region_of, region_view
from .fleet import pool_bars


def topics_of(viewer: Viewer) -> list[str]:
    """What this page listens to. A customer hears his own jobs, not the fleet."""
    if sees_fleet(viewer):
        return ["overview", "fleet"]
    topics = [f"job:{pk}" for pk in jobs_live(viewer).values_list("pk", flat=True)[:40]]
    if viewer.customer_id is not None:
        topics.append(f"guarantee:{viewer.customer_id}")
    return topics


def state(viewer: Viewer) -> dict[str, Any]:
    data = overview(viewer, clock.now())
    cards = [(card, svg.stage_steps(card.done, 0.5)) for card in data.migrations]
    return {"data": data, "cards": cards, "standings": standings(viewer)}


def jobs(viewer: Viewer) -> dict[str, Any]:
    whole = fleet(viewer) if sees_fleet(viewer) else None
    return {
        "rows": job_rows(viewer),
        "standings": standings(viewer),
        "covers": None if whole is None else pool_bars(whole),
        "num_spares": 0 if whole is None else whole.spares_ready,
    }


def events(viewer: Viewer) -> dict[str, Any]:
    return {"entries": feed(viewer)}


REGIONS = {
    "state": ("overview/_state.html", state),
    "jobs": ("overview/_jobs.html", jobs),
    "events": ("overview/_events.html", events),
}


@page_view
def overview_page(request: HttpRequest, viewer: Viewer) -> Page:
    context = {**state(viewer), **jobs(viewer), **events(viewer)}
    context["topic_list"] = " ".join(topics_of(viewer))
    demo = any(row.job.is_demo for row in context["rows"]) or any(
        one.is_demo for one in [*context["entries"], *context["standings"]]
    )
    return Page(
        "Overview", "overview", "overview/page.html", context, topics_of(viewer), is_demo=demo
    )


@region_view
def overview_region(request: HttpRequest, viewer: Viewer, name: str) -> tuple[str, dict[str, Any]]:
    template, gather = region_of(REGIONS, name)
    return template, gather(viewer)
