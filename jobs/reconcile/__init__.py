"""Does whatever is missing: correct by the clock, quick by the event.

One pass over one job is one transaction under the job's lock. It reads rows, never memory: a platform
that was killed in the middle of a failover goes on where the rows say it is.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from nodes import selectors as node_reads
from nodes import services as node_services
from nodes.states import NodeState
from yoco_platform.core import clock
from yoco_platform.core.auth import SYSTEM
from yoco_platform.core.locks import advisory_lock

from ..models import Incident, Job, Parking, Worker
from ..services.orders import orders_expire
from ..services.steps import job_step
from ..states import (
    INCIDENT_OPEN,
    JOB_FINAL,
    JOB_LIVE,
    PARKING_OPEN,
    WORKER_ALIVE,
    JobState,
    WorkerState,
)
from .ending import clear_away, returned_after, watch_finish
from .guarding import judge_protection, keep_standbys
from .moving import move_away
from .pacing import compare_paces
from .parking import begin_parking, come_back, note_return
from .preempting import make_room
from .recovering import recover
from .restarting import restarts_judged
from .settling import settle
from .starting import start, watch_start
from .view import View, view_of

log = structlog.get_logger(__name__)

ASIDE = timedelta(seconds=10)
"""A job over which a pass raised waits this long for the clock; news of it is looked at at once."""
JOBS_PER_PASS = 1_000
LOOKS_MAX = 8
"""One call looks again while news comes in, but not for ever: the clock comes back."""

__all__ = ["reconcile_all", "reconcile_job", "reconcile_jobs"]


def reconcile_all() -> int:
    """One pass over every job that may need something, by priority, then age. How many it saw."""
    now = clock.now()
    orders_expire()
    alive = Worker.objects.filter(job=OuterRef("pk"), state__in=WORKER_ALIVE)
    unclosed = Incident.objects.filter(job=OuterRef("pk"), state__in=INCIDENT_OPEN)
    put_by = Parking.objects.filter(job=OuterRef("pk"), state__in=PARKING_OPEN)
    due = (
        Job.objects.filter(
            Q(state__in=JOB_LIVE) | Exists(alive) | Exists(unclosed) | Exists(put_by)
        )
        .filter(Q(put_aside_until__isnull=True) | Q(put_aside_until__lte=now))
        .order_by("-priority", "pk")
        .values_list("pk", flat=True)
    )
    seen = reconcile_jobs(list(due[:JOBS_PER_PASS]))
    _drained()
    return seen


def reconcile_jobs(job_ids: list[int]) -> int:
    """Pass over these jobs; one that raises is put aside and does not stop the others."""
    for job_id in job_ids:
        try:
            reconcile_job(job_id)
        except Exception:
            Job.objects.filter(pk=job_id).update(put_aside_until=clock.now() + ASIDE)
            log.exception("job_put_aside", job=job_id)
    return len(job_ids)


def reconcile_job(job_id: int) -> bool:
    """Look at one job until nothing new has happened to it; False when somebody else is at it.

    Whoever holds the lock sees the news that came in meanwhile, so nobody has to wait for it.
    """
    for _ in range(LOOKS_MAX):
        with advisory_lock(f"job.{job_id}") as mine:
            if not mine:
                return False
            news = _look(job_id)
        if news == Job.objects.filter(pk=job_id).values_list("news", flat=True).first():
            return True
    return True


@transaction.atomic
def _look(job_id: int) -> int | None:
    """One pass; the count of news that it has seen."""
    job = Job.objects.select_for_update(no_key=True).filter(pk=job_id).first()
    if job is None:
        return None
    if job.put_aside_until is not None:
        job.put_aside_until = None
        job.save(update_fields=["put_aside_until"])
    view = view_of(job)
    if job.state in JOB_FINAL:
        clear_away(view)
    else:
        _do_what_is_missing(view)
    if job.state in JOB_FINAL:
        clear_away(view_of(job))
    return job.news


def _do_what_is_missing(view: View) -> None:
    restarts_judged(view)
    if returned_after(view) is not None:
        # What its ranks have proven of its last move has the say, good or bad; the end excludes the rest.
        settle(view)
    # A script that has ended well is done, even one that was still to join: first of all that.
    if (
        start(view)
        or come_back(view)
        or watch_finish(view)
        or watch_start(view)
        or _unreachable(view)
    ):
        if view.job.state not in JOB_FINAL:
            judge_protection(view)
        return
    missing = recover(view)
    if view.job.state in JOB_FINAL or view.job.state in (JobState.WAITING, JobState.PARKED):
        judge_protection(view_of(view.job))
        return
    settle(view)
    note_return(view)
    begin_parking(view)
    move_away(view)
    keep_standbys(view, missing)
    make_room(view, missing)
    judge_protection(view)
    compare_paces(view)


def _unreachable(view: View) -> bool:
    """No rank can be heard: nothing starts elsewhere, for they may all be training still."""
    job = view.job
    # Those whose state was parked are no longer there to be heard: whoever keeps it is waited for.
    present = [m for m in view.members if not (m.state == WorkerState.EXITED and m.is_stopping)]
    silent = bool(present) and all(view.node(m).silent for m in present)
    if silent and job.state in (JobState.RUNNING, JobState.RECOVERING):
        words = "no agent of its ranks can be heard; nothing starts elsewhere by itself"
        job_step(job=job, to=JobState.UNREACHABLE, reason=words)
    elif not silent and job.state == JobState.UNREACHABLE:
        to = JobState.RUNNING if view.incident is None else JobState.RECOVERING
        job_step(job=job, to=to, reason="an agent of its ranks is heard again")
    return job.state == JobState.UNREACHABLE


def _drained() -> None:
    """Tell the nodes app which draining nodes have nothing left on them."""
    for node in node_reads.nodes_list(SYSTEM, state=NodeState.DRAINING):
        if not Worker.objects.filter(node_id=node.pk, state__in=WORKER_ALIVE).exists():
            node_services.node_emptied(node_id=node.pk)
