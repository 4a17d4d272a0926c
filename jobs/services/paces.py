"""How long each rank was at work itself: the last reports of each, kept for the rule *slow rank*."""

from __future__ import annotations

from agent import protocol
from nodes import selectors as node_reads

from ..models import Job, Worker


def own_ms_keep(*, job: Job, worker: Worker, body: protocol.RankCosts) -> None:
    """Keep as many as the rule compares, of this generation; a step told twice counts once.

    With rank 0's next one the next pass compares all. The job is locked.
    """
    kept = [report for report in worker.own_ms if report[0] == body.generation]
    own_ms = body.costs.get("own_ms")
    is_news = body.generation == job.generation and (not kept or body.step > kept[0][1])
    if own_ms is None or not is_news:
        return
    rule = node_reads.policy_current()[1].pace
    worker.own_ms = [[body.generation, body.step, own_ms], *kept][: rule.reports]
    worker.save(update_fields=["own_ms"])
    if body.rank == 0:
        job.paces_due = True
        job.save(update_fields=["paces_due"])
