"""The fleet: every node by rack, a small map, the spares, and what is wrong."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.safestring import SafeString

from yoco_platform.core.auth import Permission, Viewer, require
from yoco_platform.core.errors import Forbidden

from .. import svg
from ..queries.fleet import Fleet, fleet
from ..queries.spares import Cover
from ..queries.visible import sees_fleet
from ..shell import Page, page_view, region_view


def main(viewer: Viewer) -> dict[str, Any]:
    require(viewer, Permission.FLEET_READ)
    if not sees_fleet(viewer):
        raise Forbidden("The fleet is shown to people who operate it.")
    whole = fleet(viewer)
    return {
        "fleet": whole,
        "sentence": sentence(whole),
        "pool_bars": pool_bars(whole),
    }


def pool_bars(whole: Fleet) -> list[tuple[Cover, SafeString]]:
    """Each pool with its nodes as a bar: spare, then in use."""
    return [
        (
            cover,
            svg.stacked(
                [
                    ("fill-spare", cover.ready),
                    ("fill-ok", sum(r.in_use for r in whole.rows if r.node.pool == cover.pool)),
                ]
            ),
        )
        for cover in whole.covers
    ]


def sentence(whole: Fleet) -> str:
    """The state in words, with counts that the table shows."""
    if not whole.rows:
        return "No nodes yet."
    bad = whole.trouble
    if not bad:
        return f"All {whole.num_gpus:,} GPUs in {len(whole.rows):,} nodes are healthy."
    gpus = sum(row.num_gpus for row in bad)
    verb = "is" if gpus == 1 else "are"
    return (
        f"{gpus:,} of {whole.num_gpus:,} GPUs {verb} not healthy, "
        f"in {len(bad):,} of {len(whole.rows):,} nodes."
    )


@page_view
def fleet_page(request: HttpRequest, viewer: Viewer) -> Page:
    context = main(viewer)
    demo = context["fleet"].shows_demo
    return Page("Fleet", "fleet", "fleet/page.html", context, ["fleet", "overview"], is_demo=demo)


@region_view
def fleet_region(request: HttpRequest, viewer: Viewer) -> tuple[str, dict[str, Any]]:
    return "fleet/_main.html", main(viewer)
