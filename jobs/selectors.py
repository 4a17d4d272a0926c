"""Reads of the training runs. What crosses a trust line takes the viewer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from django.db.models import F, Prefetch, QuerySet, Sum

from nodes.selectors import NodeView
from yoco_platform.core.auth import Permission, Viewer, require
from yoco_platform.core.errors import InvalidField, NotFound
from yoco_platform.core.models import Cluster, Customer

from .errors import IncidentUnknown, JobUnknown, MigrationUnknown
from .models import (
    Generation,
    Incident,
    IncidentTransition,
    Job,
    JobTransition,
    Migration,
    Parking,
    Placement,
    Point,
    Stage,
    StateDigest,
    Worker,
)
from .placement import Slot
from .states import INCIDENT_OPEN, PARKING_OPEN, WORKER_ALIVE, JobState, WorkerState

POINTS_MAX = 2_000
PARKINGS_MAX = 100

Row = TypeVar("Row", Job, Incident)


def _scoped(rows: QuerySet[Any], viewer: Viewer) -> QuerySet[Any]:  # Any: jobs or incidents
    if viewer.customer_id is not None:
        rows = rows.filter(customer_id=viewer.customer_id)
    if viewer.cluster_id is not None:
        rows = rows.filter(cluster_id=viewer.cluster_id)
    return rows


def _page(rows: QuerySet[Row], state: str, before: int | None, limit: int) -> list[Row]:
    """The newest ``limit`` rows in that state ("": in any) with ids below ``before``."""
    if state:
        rows = rows.filter(state=state)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    return list(rows.order_by("-pk")[:limit])


def jobs_visible(viewer: Viewer) -> QuerySet[Job]:
    """The jobs this viewer may see, newest first. Raises Forbidden."""
    require(viewer, Permission.JOB_READ)
    return _scoped(Job.objects.select_related("customer", "cluster"), viewer)


def jobs_list(
    viewer: Viewer, *, state: str = "", before: int | None = None, limit: int = 50
) -> list[Job]:
    """One page of jobs, newest first; ``before`` is the id where the last page ended."""
    return _page(jobs_visible(viewer), state, before, limit)


def job_get(viewer: Viewer, job_id: int) -> Job:
    """One job, or JobUnknown: not found and not yours are the same answer."""
    job = jobs_visible(viewer).filter(pk=job_id).first()
    if job is None:
        raise JobUnknown(f"there is no job {job_id}")
    return job


def incidents_visible(viewer: Viewer) -> QuerySet[Incident]:
    """The incidents this viewer may see, newest first. Raises Forbidden."""
    require(viewer, Permission.INCIDENT_READ)
    return _scoped(Incident.objects.select_related("job", "customer", "cluster"), viewer)


def incidents_list(
    viewer: Viewer,
    *,
    job_id: int | None = None,
    state: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[Incident]:
    """One page of incidents, newest first."""
    incidents = incidents_visible(viewer)
    if job_id is not None:
        incidents = incidents.filter(job_id=job_id)
    return _page(incidents, state, before, limit)


def incident_get(viewer: Viewer, incident_id: int) -> Incident:
    """One incident, or IncidentUnknown."""
    incident = incidents_visible(viewer).filter(pk=incident_id).first()
    if incident is None:
        raise IncidentUnknown(f"there is no incident {incident_id}")
    return incident


def incident_transitions(viewer: Viewer, incident_id: int) -> list[IncidentTransition]:
    """Every step of an incident, oldest first."""
    return list(incident_get(viewer, incident_id).transitions.all())


def migrations_of(
    viewer: Viewer, *, incident_id: int | None = None, job_id: int | None = None, limit: int = 50
) -> list[Migration]:
    """Migrations of an incident, or of a job, newest first, with stages and moves."""
    rows = _migrations(viewer)
    if incident_id is not None:
        rows = rows.filter(incident_id=incident_get(viewer, incident_id).pk)
    if job_id is not None:
        rows = rows.filter(job_id=job_get(viewer, job_id).pk)
    return list(rows.order_by("-pk")[:limit])


def migration_get(viewer: Viewer, migration_id: int) -> Migration:
    """One migration with stages and moves, or MigrationUnknown."""
    migration = _migrations(viewer).filter(pk=migration_id).first()
    if migration is None:
        raise MigrationUnknown(f"there is no migration {migration_id}")
    return migration


def _migrations(viewer: Viewer) -> QuerySet[Migration]:
    return (
        Migration.objects.filter(job__in=jobs_visible(viewer))
        .select_related("job", "incident")
        .prefetch_related(
            Prefetch("stages", Stage.objects.order_by("began_at", "pk")),
            "moves__from_node",
            "moves__to_node",
        )
    )


def workers_of(viewer: Viewer, job_id: int, *, alive_only: bool = False) -> list[Worker]:
    """The workers of the job's present attempt: ranks first, then standbys."""
    job = job_get(viewer, job_id)
    workers = Worker.objects.filter(job=job, attempt=job.attempt).select_related("node")
    if alive_only:
        workers = workers.filter(state__in=WORKER_ALIVE)
    return sorted(workers, key=lambda w: (w.rank is None, w.rank or 0, -w.generation, w.created_at))


def placements_of(viewer: Viewer, job_id: int) -> list[Placement]:
    """Where each rank of the present generation sits, in rank order."""
    job = job_get(viewer, job_id)
    return list(
        Placement.objects.filter(
            generation__job=job,
            generation__attempt=job.attempt,
            generation__number=job.generation,
        )
        .select_related("worker", "node")
        .order_by("rank")
    )


def generations_of(viewer: Viewer, job_id: int) -> list[Generation]:
    """Every membership the job has had, oldest first, with its placements."""
    job = job_get(viewer, job_id)
    return list(job.generations.prefetch_related("placements__node").all())


def points_of(viewer: Viewer, job_id: int, *, after_step: int = -1) -> list[Point]:
    """Points of the job's charts, in step order."""
    job = job_get(viewer, job_id)
    return list(job.points.filter(step__gt=after_step).order_by("attempt", "step", "generation"))


def state_digests_of(viewer: Viewer, job_id: int, *, step: int | None = None) -> list[StateDigest]:
    """Digests of whole ranks at fences, for comparison with a twin."""
    digests = job_get(viewer, job_id).state_digests.all()
    return list(digests if step is None else digests.filter(step=step))


def job_transitions(viewer: Viewer, job_id: int) -> list[JobTransition]:
    """Every step of a job, oldest first."""
    return list(job_get(viewer, job_id).transitions.all())


def ranks_all_stopped(job_id: int) -> bool:
    """Whether no rank of the present generation is still believed to train."""
    return not Worker.objects.filter(
        job_id=job_id,
        rank__isnull=False,
        attempt=F("job__attempt"),
        generation=F("job__generation"),
        state=WorkerState.RUNNING,
    ).exists()


def incident_open_of(job: Job) -> Incident | None:
    """The incident of a job's present attempt that has not ended, if there is one."""
    rows = Incident.objects.filter(job=job, attempt=job.attempt, state__in=INCIDENT_OPEN)
    return rows.order_by("-pk").first()


def incidents_rolled_back(job: Job) -> list[Incident]:
    """Incidents of earlier attempts that wait for what the script loads from its checkpoint."""
    rows = Incident.objects.filter(job=job, attempt__lt=job.attempt, state__in=INCIDENT_OPEN)
    return list(rows.order_by("pk"))


def began_at(job: Job) -> int:
    """The step that the present attempt went on after: what its script loaded, 0 where it loaded none."""
    first = Generation.objects.filter(job=job, attempt=job.attempt, number=1)
    return first.values_list("resume_at", flat=True).first() or 0


def parking_open_of(job: Job) -> Parking | None:
    """How a job gives its places up, or comes back from that, now."""
    return Parking.objects.select_related("for_job").filter(job=job, state__in=PARKING_OPEN).first()


def parkings_of(viewer: Viewer, job_id: int) -> list[Parking]:
    """Every time the job gave its places up, or was to, newest first.

    For whom, why instead of others, and where on which disk are not for customers.
    """
    rows = list(job_get(viewer, job_id).parkings.order_by("-pk")[:PARKINGS_MAX])
    if viewer.customer_id is not None:
        for row in rows:
            row.for_job_id = None  # type: ignore[assignment]  # a row to read, not to save
            row.reasons, row.ranks = [], {}
    return rows


def slots_claimed(job: Job) -> int:
    """Free slots that this job leaves to recoveries of higher jobs of its pool."""
    lacking = Job.objects.filter(
        cluster_id=job.cluster_id,
        pool=job.pool,
        state=JobState.RECOVERING,
        priority__gt=job.priority,
    ).exclude(pk=job.pk)
    return int(lacking.aggregate(sum=Sum("slots_missing"))["sum"] or 0)


def slots_for(job: Job, nodes: Iterable[NodeView]) -> list[Slot]:
    """The free slots of these nodes that this job may take: recoveries of higher jobs come first."""
    free = sorted(slots_free(nodes))
    return free[: max(len(free) - slots_claimed(job), 0)]


def slots_free(nodes: Iterable[NodeView]) -> list[Slot]:
    """GPU slots of nodes that take work and on which nothing alive sits."""
    usable = [node for node in nodes if node.takes_work]
    taken = set(
        Worker.objects.filter(
            node_id__in=[node.id for node in usable], state__in=WORKER_ALIVE
        ).values_list("node_id", "gpu_index")
    )
    return [
        Slot(node.id, gpu.index, node.name, node.failure_domain, gpu.model)
        for node in usable
        for gpu in node.gpus
        if (node.id, gpu.index) not in taken
    ]


def submission_scope(viewer: Viewer, customer: str, cluster: str) -> tuple[Customer, Cluster]:
    """The customer and the cluster a submission is for; "" takes the viewer's own, or the only one.

    Raises NotFound for another's, InvalidField where the choice must be named.
    """
    return (
        _one(Customer, customer, viewer.customer_id, "customer"),
        _one(Cluster, cluster, viewer.cluster_id, "cluster"),
    )


def _one(model: Any, slug: str, own: int | None, field: str) -> Any:  # Any: Customer or Cluster
    rows = model.objects.all() if own is None else model.objects.filter(pk=own)
    if slug:
        row = rows.filter(slug=slug).first()
        if row is None:
            raise NotFound(f"there is no {field} {slug}", field=field)
        return row
    found = list(rows[:2])
    if not found:
        raise InvalidField(
            f"there is no {field} yet: an administrator adds one in /admin", field=field
        )
    if len(found) > 1:
        raise InvalidField(f"name the {field}: there are several", field=field)
    return found[0]
