"""Room for a recovery that finds no place: whose standby or whose ranks give way to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.conf import settings
from django.db.models import F

from nodes import selectors as node_reads
from nodes.selectors import NodeView
from yoco_platform.core.models import Cluster

from .. import selectors
from ..models import Generation, Incident, Job, Migration, Parking, Worker
from ..placement import Slot
from ..preemption import Candidate, Choice, Need, places_for
from ..services.incidents import incident_waits
from ..services.jobs import workers_stop
from ..services.parkings import parking_want
from ..states import (
    INCIDENT_OPEN,
    JOB_LIVE,
    MIGRATION_OPEN,
    PARKING_OPEN,
    WORKER_ALIVE,
    JobState,
    ParkingState,
)
from ..wakeups import reconcile_soon
from .guarding import hopeless, models_of, useless
from .view import View

log = structlog.get_logger(__name__)

DAY = timedelta(days=1)
FAILED_LATELY = timedelta(minutes=10)
"""A job that could not be parked is not asked again for this long."""
CANDIDATES_MAX = 500
SEPARATOR = "; room: "
"""Between what the planner waits for and what is done about it."""


def make_room(view: View, missing: int) -> None:
    """See to it that a recovery that lacks ``missing`` standbys gets places for them, if any can be had."""
    job = view.job
    lacking, warming = _lacking(view, missing)
    if job.slots_missing != lacking:
        job.slots_missing = lacking
        job.save(update_fields=["slots_missing"])
    if not lacking:
        return
    if Parking.objects.filter(for_job=job, state__in=_UNDER_WAY).exists():
        _say(view, "a lower job is being parked to make room")
        return
    Cluster.objects.select_for_update(no_key=True).get(pk=job.cluster_id)
    nodes = {n.id: n for n in node_reads.nodes_for_work(job.cluster_id, job.pool)}
    need = Need(
        name=job.name,
        priority=job.priority,
        num_slots=missing,
        models=models_of(view),
        warming=warming,
    )
    barred = hopeless(view)
    usable = {k: n for k, n in nodes.items() if n.takes_work and n.is_spare and k not in barred}
    choice = places_for(
        need,
        selectors.slots_free(usable.values()),
        _candidates(view, usable, nodes),
        parked_max=settings.PARKED_PER_DAY_MAX,
    )
    _act(view, choice, usable, lacking)


_UNDER_WAY = (ParkingState.WANTED, ParkingState.PAUSING, ParkingState.WRITING)


def _lacking(view: View, missing: int) -> tuple[int, int]:
    """(places that are lacking, standbys that are on their way)."""
    job = view.job
    if not missing or not job.wants_protection or job.state != JobState.RECOVERING:
        return 0, 0
    if view.parking is not None:
        return 0, 0  # it comes back where there is room, at nobody's cost
    alive = Worker.objects.filter(
        job=job, attempt=job.attempt, rank__isnull=True, state__in=WORKER_ALIVE
    ).count()
    warming = max(alive - sum(1 for s in view.standbys if useless(view, s)), 0)
    return max(missing - warming, 0), warming


def _act(view: View, choice: Choice, usable: dict[int, NodeView], lacking: int) -> None:
    if choice.kind == "spare":
        _standbys_taken(view, choice, usable, lacking)
    elif choice.kind == "park":
        for other in Job.objects.filter(pk__in=choice.job_ids):
            parking_want(job=other, for_job=view.job, num_slots=lacking, reasons=choice.reasons)
    if choice.kind in ("spare", "park"):
        reconcile_soon()
    _say(view, choice.summary, *choice.reasons)


def _standbys_taken(view: View, choice: Choice, usable: dict[int, NodeView], lacking: int) -> None:
    reason = "its node goes to a job of higher priority, which has lost a rank"
    for other in Job.objects.filter(pk__in=choice.job_ids):
        standbys = Worker.objects.filter(
            job=other,
            attempt=other.attempt,
            rank__isnull=True,
            state__in=WORKER_ALIVE,
            node_id__in=list(usable),
        )
        taken = list(standbys.order_by("created_at")[:lacking])
        workers_stop(job=other, workers=taken, reason=reason)
        lacking -= len(taken)


def _say(view: View, summary: str, *reasons: str) -> None:
    """On the incident, which the job's customer reads, nobody else's job is named; the log has it all."""
    incident = view.incident
    if incident is None:
        return
    words = f"{incident.waiting_for.partition(SEPARATOR)[0]}{SEPARATOR}{summary}"
    if words != incident.waiting_for:
        log.info("room_looked_for", job=view.job.pk, summary=summary, reasons=list(reasons))
        incident_waits(incident=incident, words=words)


def _candidates(
    view: View, usable: dict[int, NodeView], nodes: dict[int, NodeView]
) -> list[Candidate]:
    """The other jobs of the pool, and where their workers sit on nodes that may be taken."""
    job = view.job
    others = Job.objects.filter(
        cluster_id=job.cluster_id, pool=job.pool, state__in=JOB_LIVE
    ).exclude(pk=job.pk)[:CANDIDATES_MAX]
    around = _around(view, [other.pk for other in others])
    return [_candidate(other, around, usable, nodes) for other in others]


@dataclass(frozen=True)
class _Around:
    """What goes on around the other jobs, each by job id: read as often for many jobs as for few."""

    workers: dict[int, list[Worker]]
    recovering: set[int]
    moving: set[int]
    giving: set[int]
    began_at: dict[int, int]
    """step that the present attempt went on after, as ``selectors.began_at`` has it"""
    failed: dict[int, str]
    """what a parking that failed lately said"""
    parked_today: Counter[int]


def _around(view: View, ids: list[int]) -> _Around:
    workers: dict[int, list[Worker]] = {}
    alive = Worker.objects.filter(
        job__in=ids, attempt=F("job__attempt"), state__in=WORKER_ALIVE
    ).order_by("pk")
    for worker in alive:
        workers.setdefault(worker.job_id, []).append(worker)
    incidents = Incident.objects.filter(job__in=ids, state__in=INCIDENT_OPEN)
    migrations = Migration.objects.filter(job__in=ids, state__in=MIGRATION_OPEN)
    parkings = Parking.objects.filter(job__in=ids).order_by("pk")
    lately = view.now - FAILED_LATELY
    failed = parkings.filter(state=ParkingState.FAILED, state_since__gt=lately)
    first = Generation.objects.filter(job__in=ids, attempt=F("job__attempt"), number=1)
    return _Around(
        workers=workers,
        recovering=set(incidents.values_list("job_id", flat=True)),
        moving=set(migrations.values_list("job_id", flat=True)),
        giving=set(parkings.filter(state__in=PARKING_OPEN).values_list("job_id", flat=True)),
        began_at=dict(first.values_list("job_id", "resume_at")),
        failed=dict(failed.values_list("job_id", "words")),
        parked_today=Counter(
            parkings.filter(parked_at__gt=view.now - DAY).values_list("job_id", flat=True)
        ),
    )


def _candidate(
    other: Job, around: _Around, usable: dict[int, NodeView], nodes: dict[int, NodeView]
) -> Candidate:
    workers = around.workers.get(other.pk, [])
    ranks: list[Slot] = []
    standbys: list[Slot] = []
    for worker in workers:
        node = usable.get(worker.node_id)
        model = _model(node, worker.gpu_index)
        if node is not None:
            slot = Slot(node.id, worker.gpu_index, node.name, node.failure_domain, model)
            (standbys if worker.rank is None else ranks).append(slot)
    return Candidate(
        job_id=other.pk,
        name=other.name,
        priority=other.priority,
        preemptible=other.preemptible,
        rank_slots=tuple(ranks),
        # A job in trouble needs its standbys itself.
        standby_slots=tuple(standbys) if other.state == JobState.RUNNING else (),
        busy=_busy(other, around, [nodes[w.node_id] for w in workers if w.node_id in nodes]),
        parked_today=around.parked_today[other.pk],
    )


def _model(node: NodeView | None, gpu_index: int) -> str:
    return next((g.model for g in node.gpus if g.index == gpu_index), "") if node else ""


def _busy(other: Job, around: _Around, sits_on: list[NodeView]) -> str:
    """Why a job cannot be parked now, in words; "" when it can."""
    if other.state != JobState.RUNNING:
        return f"it is {JobState(other.state).label} and can be parked only while it runs"
    if not other.wants_protection or other.committed_step <= around.began_at.get(other.pk, 0):
        return "it has committed no step that could be kept"
    if other.pk in around.recovering:
        return "it recovers from a failure itself"
    if other.pk in around.moving:
        return "its ranks are being moved"
    if other.pk in around.giving:
        return "it gives its places up already"
    if any(node.silent for node in sits_on):
        return "a node of it is not heard"
    return around.failed.get(other.pk, "")
