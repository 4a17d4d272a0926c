"""Jobs: the list, and one job across its failovers."""

from __future__ import annotations

from datetime import timedelta
from string import Formatter
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.urls import reverse

from jobs import selectors
from jobs.states import JOB_LIVE, JobState, Verdict
from yoco_platform.core import clock
from yoco_platform.core.auth import Viewer

from .. import charts, formatting, svg
from ..entered import number_of
from ..formatting import NBSP
from ..queries.incident import last_step, loaded_step, next_step
from ..queries.job import (
    GenerationRow,
    generation_rows,
    job_incidents,
    pauses_of,
    points_of,
    ranks_of,
)
from ..queries.overview import rows_of
from ..queries.visible import sees_fleet
from ..shell import Page, page_view, region_of, region_view
from ..words import job_look, protection_look
from .overview import topics_of

if TYPE_CHECKING:
    from jobs.models import Job

PER_PAGE = 50
PROOFS_SHOWN = 2


def listing(viewer: Viewer, query: dict[str, str]) -> dict[str, Any]:
    """A page of jobs; ``state`` filters, ``before`` pages. Both are in the address."""
    state = query.get("state", "")
    before = query.get("before", "")
    jobs = selectors.jobs_list(
        viewer,
        state=state if state in JobState.values else "",
        before=number_of(before),
        limit=PER_PAGE + 1,
    )
    total = selectors.jobs_visible(viewer)
    return {
        "rows": rows_of(viewer, jobs[:PER_PAGE]),
        "next": jobs[PER_PAGE - 1].pk if len(jobs) > PER_PAGE else None,
        "state": state,
        "states": [(value, job_look(value)) for value in JobState.values],
        "num_live": total.filter(state__in=JOB_LIVE).count(),
        "num_all": total.count(),
        "query": f"state={state}" if state else "",
    }


@page_view
def jobs_page(request: HttpRequest, viewer: Viewer) -> Page:
    context = listing(viewer, request.GET.dict())
    demo = any(row.job.is_demo for row in context["rows"])
    context["topic_list"] = " ".join(topics_of(viewer))
    return Page("Jobs", "jobs", "jobs/page.html", context, topics_of(viewer), is_demo=demo)


@region_view
def jobs_region(request: HttpRequest, viewer: Viewer) -> tuple[str, dict[str, Any]]:
    return "jobs/_list.html", listing(viewer, request.GET.dict())


def state(viewer: Viewer, job_id: int) -> dict[str, Any]:
    """The head: figures, the ribbon of generations, who holds which rank."""
    job = selectors.job_get(viewer, job_id)
    ranks, standbys = ranks_of(job)
    rows = generation_rows(job)
    incidents = job_incidents(viewer, job)
    last = points_of(job)[-1:]
    nodes = [row.worker.node for row in ranks]
    parkings = selectors.parkings_of(viewer, job_id)
    parked = [row.parked_at for row in parkings if row.parked_at is not None]
    return {
        "job": job,
        "look": job_look(job.state),
        "protection": protection_look(job.protection),
        "ranks": ranks,
        "standbys": standbys,
        "generations": rows,
        "ribbon": _ribbon(rows),
        "point": last[0] if last else None,
        "lost_steps": sum(incident.lost_steps or 0 for incident in incidents),
        "num_incidents": len(incidents),
        "paused_s": sum((incident.pause_ms or 0.0) for incident in incidents) / 1000,
        "simulated": any(gpu.simulated for node in nodes for gpu in node.gpus.all()),
        "root_nodes": sorted({node.name for node in nodes if node.runs_as_root}),
        "links_nodes": sees_fleet(viewer),
        "parkings": parkings,
        "num_parked": len(parked),
        "num_parked_today": sum(clock.now() - at < timedelta(days=1) for at in parked),
    }


COSTS = (
    ("On the training thread", "{prepare_ms} to prepare, {vote_ms} to vote"),
    ("Shadow, on its own node", "{shadow_bytes} copied in {shadow_ms} beside the step"),
    ("Buddy, on another node", "{buddy_bytes} copied in {buddy_ms} beside the step"),
    ("Wait for the buddy", "{buddy_wait_ms} at the end of the step"),
    ("Private state, before the vote", "{private_bytes} to the buddy"),
    (
        "Micro-batches",
        "{micro_batch_bytes} kept in {micro_batch_store_ms}, agreed in {micro_batch_agree_ms}",
    ),
)


def cost_rows(job: Job) -> list[tuple[str, str]]:
    """(part, what it costs a step) as rank 0 measured it; what this job does not have is left out."""
    measured = {
        key: formatting.size(int(value)) if key.endswith("_bytes") else f"{value:.1f}{NBSP}ms"
        for key, value in job.costs.items()
        if key != "step"
    }
    rows: list[tuple[str, str]] = []
    for part, words in COSTS:
        wanted = {name for _, name, _, _ in Formatter().parse(words) if name}
        if wanted <= measured.keys():
            rows.append((part, words.format(**measured)))
    return rows


def _ribbon(rows: list[GenerationRow]) -> Any:
    ordered = rows[::-1]
    segments = [(float(row.first_step - 1), float(row.last_step)) for row in ordered]
    return svg.ribbon(segments, [float(row.first_step - 1) for row in ordered[1:]])


def drawings(viewer: Viewer, job_id: int) -> dict[str, Any]:
    """Loss and step time across failovers."""
    job = selectors.job_get(viewer, job_id)
    points = points_of(job)
    pauses = pauses_of(points, generation_rows(job))
    return {"job": job, "charts": charts.draw(points, pauses), "num_points": len(points)}


def proof(viewer: Viewer, job_id: int) -> dict[str, Any]:
    """Did we lose progress? And every incident of the job."""
    job = selectors.job_get(viewer, job_id)
    incidents = job_incidents(viewer, job)
    judged = [incident for incident in incidents if incident.lost_steps is not None]
    return {
        "job": job,
        "incidents": incidents,
        "proofs": [
            (one, _sources(one), last_step(one), next_step(one)) for one in judged[:PROOFS_SHOWN]
        ][::-1],
        "judged": judged,
        "lost_steps": sum(incident.lost_steps or 0 for incident in judged),
        "missed": [one for one in judged if one.verdict == Verdict.MISSED],
        "generations": generation_rows(job),
    }


def inventory(viewer: Viewer, job_id: int) -> dict[str, Any]:
    """What the engine protects, and what it saw and does not."""
    job = selectors.job_get(viewer, job_id)
    return {"job": job, "inventory": job.inventory, "costs": cost_rows(job)}


def _sources(incident: Any) -> str:  # Any: an Incident with its migrations and moves
    loaded = loaded_step(incident)
    if loaded is not None:
        return "checkpoint" if loaded else "none: begun anew"
    moves = [move for migration in incident.migrations.all() for move in migration.moves.all()]
    return ", ".join(dict.fromkeys(move.source for move in moves)) or "\u2013"


REGIONS = {
    "state": ("job/_state.html", state),
    "charts": ("job/_charts.html", drawings),
    "proof": ("job/_proof.html", proof),
    "inventory": ("job/_inventory.html", inventory),
}


@page_view
def job_page(request: HttpRequest, viewer: Viewer, job_id: int) -> Page:
    context = {
        **proof(viewer, job_id), **drawings(viewer, job_id), **inventory(viewer, job_id),
        **state(viewer, job_id),
    }  # fmt: skip
    job = context["job"]
    crumbs = [("Jobs", reverse("jobs"))]
    topics = [f"job:{job.pk}"]
    return Page(job.name, "jobs", "job/page.html", context, topics, crumbs, is_demo=job.is_demo)


@region_view
def job_region(
    request: HttpRequest, viewer: Viewer, job_id: int, name: str
) -> tuple[str, dict[str, Any]]:
    template, gather = region_of(REGIONS, name)
    return template, gather(viewer, job_id)
