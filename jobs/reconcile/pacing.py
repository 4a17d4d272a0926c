"""Ranks that are slower than their peers by own work: compared here, judged by the nodes app."""

from __future__ import annotations

from nodes import selectors as node_reads
from nodes import services as node_services
from nodes.paces import paces_judged

from ..states import JobState
from .view import View


def compare_paces(view: View) -> None:
    """Compare the ranks of a generation that runs, once for each report of rank 0."""
    job = view.job
    if not job.paces_due or job.state != JobState.RUNNING or view.migration is not None:
        return
    job.paces_due = False
    job.save(update_fields=["paces_due"])
    rule = node_reads.policy_current()[1].pace
    if rule.mode == "off":
        node_services.paces_forgotten(job_id=job.pk, words="the rule is off")
        return
    reports: dict[int, list[float]] = {}
    seats: dict[int, int] = {}
    for member in view.members:
        rank = member.rank or 0
        seats[rank] = member.node_id
        reports[rank] = [ms for number, _, ms in member.own_ms if number == job.generation]
    paces = [(seats[pace.rank], pace) for pace in paces_judged(reports, rule)]
    node_services.paces_found(job_id=job.pk, paces=paces, rule=rule)
