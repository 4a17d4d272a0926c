"""How long each rank was at work itself, brought together for the rule *slow rank* of the nodes app."""

from __future__ import annotations

from nodes import selectors as node_reads
from nodes import services as node_services
from nodes.paces import paces_judged
from nodes.policies import PaceRule

from ..models import AgentEvent, Job, Worker


def paces_weighed(*, job: Job) -> None:
    """Judge the ranks of the present generation by the reports stored so far. The job is locked."""
    rule = node_reads.policy_current()[1].pace
    if rule.mode == "off":
        node_services.paces_forgotten(job_id=job.pk, words="the rule is off")
        return
    seats = dict(
        Worker.objects.filter(
            job=job, attempt=job.attempt, generation=job.generation, rank__isnull=False
        ).values_list("rank", "node_id")
    )
    paces = paces_judged(_reports(job, rule), rule)
    found = [(seats[pace.rank], pace) for pace in paces if pace.rank in seats]
    node_services.paces_found(job_id=job.pk, paces=found, rule=rule)


def _reports(job: Job, rule: PaceRule) -> dict[int, list[float]]:
    """rank -> own milliseconds a step in this generation, newest report first."""
    rows = AgentEvent.objects.filter(
        job=job,
        kind="rank_costs",
        refused_code="",
        body__attempt=job.attempt,
        body__generation=job.generation,
    ).order_by("-pk")
    reports: dict[int, list[float]] = {}
    # Ranks report at their own times: one more than is asked for may lie between.
    for body in rows.values_list("body", flat=True)[: job.world_size * (rule.reports + 1)]:
        own_ms = body["costs"].get("own_ms")
        if own_ms is not None:
            reports.setdefault(body["rank"], []).append(float(own_ms))
    return reports
