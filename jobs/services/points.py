"""What charts show, thinned so that a job never keeps more than POINTS_MAX."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from agent import protocol
from yoco_platform.core import clock
from yoco_platform.core.realtime import publish_on_commit

from ..errors import EventRefused
from ..models import Job, Point
from ..selectors import POINTS_MAX

STEPS_PER_S_MAX = 100_000
"""No step is that quick: it votes over the network, and stores its state before and after."""


def steps_check(*, job: Job, steps: Iterable[int], now: datetime) -> None:
    """Refuse steps that no job can have made since it was submitted. Raises EventRefused.

    Ranks count from 0 in each attempt, so a true report is always far below the bound, however late it
    comes and however many before it were dropped. What every later failure is measured against must
    not be moved by one agent's bad number.
    """
    elapsed_s = max((now - job.created_at).total_seconds(), 1.0)
    most = STEPS_PER_S_MAX * elapsed_s
    if not all(0 <= step <= most for step in steps):
        raise EventRefused("impossible_step")


def step_committed(*, job: Job, step: int) -> None:
    """Somebody has committed this step. An earlier one is no news."""
    if step > job.committed_step:
        job.committed_step = step
        job.save(update_fields=["committed_step"])


def points_keep(*, job: Job, body: protocol.Points) -> int:
    """Store the points of the lowest rank that reports; how many were new."""
    if job.points_rank is None or body.rank < job.points_rank:
        job.points_rank = body.rank
        job.save(update_fields=["points_rank"])
    step_committed(job=job, step=max((point[0] for point in body.points), default=0))
    if body.rank != job.points_rank:
        return 0
    rows = [
        Point(
            job=job,
            attempt=body.attempt,
            generation=body.generation,
            step=step,
            at=clock.from_epoch(at),
            loss=loss,
            step_ms=step_ms,
        )
        for step, at, loss, step_ms in body.points
    ]
    Point.objects.bulk_create(rows, ignore_conflicts=True)
    _thin(job)
    data: dict[str, Any] = {
        "points": [[row.step, row.loss, row.step_ms, row.at.timestamp()] for row in rows],
        "generation": body.generation,
    }
    publish_on_commit(f"job:{job.pk}", "point", data)
    return len(rows)


def _thin(job: Job) -> None:
    """Drop every second point of the older half until the rest fits: the curve keeps its shape."""
    while job.points.count() > POINTS_MAX:
        ordered = list(job.points.order_by("attempt", "step", "pk").values_list("pk", flat=True))
        old = ordered[: max(2, len(ordered) // 2)]
        Point.objects.filter(pk__in=old[1::2]).delete()
