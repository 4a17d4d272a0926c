"""Submitting and ending jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from django.db import transaction

from agent import protocol
from agent.protocol import Limits
from nodes import selectors as node_reads
from yoco_platform.core import clock
from yoco_platform.core.audit import audit
from yoco_platform.core.auth import Permission, Viewer, require
from yoco_platform.core.errors import InvalidField
from yoco_platform.core.models import Cluster, Customer
from yoco_platform.core.realtime import publish_on_commit

from .. import selectors
from ..errors import JobEnded, JobNotEnded, WorldSizeDoesNotFit
from ..models import Job, Parking, Worker
from ..states import JOB_FINAL, WORKER_ALIVE, JobState, ParkingState, WhenFull, WorkerState
from ..wakeups import reconcile_soon
from .orders import STOP_DEADLINE_S, job_news, orders_create, orders_supersede, stop_create
from .parkings import parking_step
from .steps import job_step, worker_step

ENVIRONMENT_RESERVED = ("YOCO_",)
ENVIRONMENT_OWN = frozenset({"YOCO_DIGEST_EVERY", "YOCO_TRAIL_FILE"})
"""read by the engine and meant for scripts, unlike the rest of the prefix"""
ARGV_BYTES_MAX = 64 * 1024
LIMIT_S_MAX = 7 * 86_400.0
"""Nothing is waited for longer than a week; a time far beyond that is none that any clock could add."""


@transaction.atomic
def job_submit(
    *,
    viewer: Viewer,
    customer: Customer,
    cluster: Cluster,
    name: str,
    command: list[str],
    world_size: int,
    pool: str,
    working_directory: str,
    run_as: str,
    environment: dict[str, str] | None = None,
    standbys: int = 1,
    priority: int = 0,
    preemptible: bool = False,
    wants_protection: bool = True,
    redundancy: str = "auto",
    accumulation: str = "redo",
    limits: dict[str, float] | None = None,
    when_full: str = WhenFull.QUEUE,
    is_demo: bool = False,
) -> Job:
    """Register a job; the reconciler starts it.

    Raises Forbidden, InvalidField, WorldSizeDoesNotFit.
    """
    require(viewer, Permission.JOB_SUBMIT)
    checked = _limits_checked(limits or {})
    _command_checked(command, environment or {})
    _size_checked(cluster.pk, pool, world_size, WhenFull(when_full))
    job = Job.objects.create(
        customer=customer,
        cluster=cluster,
        name=name,
        state=JobState.SUBMITTED,
        state_since=clock.now(),
        protection_reason="not started yet",
        wants_protection=wants_protection,
        world_size=world_size,
        standbys=standbys,
        priority=priority,
        preemptible=preemptible,
        pool=pool,
        command=command,
        environment=environment or {},
        working_directory=working_directory,
        run_as=run_as,
        redundancy=redundancy,
        accumulation=accumulation,
        limits=checked,
        when_full=when_full,
        is_demo=is_demo or customer.is_demo,
        submitted_by=viewer.name,
    )
    audit(viewer, "job_submit", f"job:{job.pk}", {"name": name, "world_size": world_size})
    publish_on_commit("overview", "job", {"job_id": job.pk, "to_state": job.state})
    reconcile_soon()
    return job


@transaction.atomic
def job_cancel(*, viewer: Viewer, job_id: int, reason: str) -> Job:
    """End a job for a person or a scheduler. Raises Forbidden, JobUnknown, JobEnded."""
    require(viewer, Permission.JOB_OPERATE)
    selectors.job_get(viewer, job_id)
    job = Job.objects.select_for_update().get(pk=job_id)
    if job.state in JOB_FINAL:
        raise JobEnded(f"job {job.pk} is {job.state}: {job.end_reason}", state=job.state)
    job_step(job=job, to=JobState.CANCELLED, reason=reason, actor=viewer.name)
    audit(viewer, "job_cancel", f"job:{job.pk}", {"reason": reason})
    job_news(job.pk)
    reconcile_soon()
    return job


@transaction.atomic
def job_state_release(*, viewer: Viewer, job_id: int, reason: str) -> list[int]:
    """Let go of the state that agents hold of an ended job, in memory and on disk; the ranks it was of.

    Nobody but a person does this. Raises Forbidden, JobUnknown, JobNotEnded.
    """
    require(viewer, Permission.JOB_OPERATE)
    selectors.job_get(viewer, job_id)
    job = Job.objects.select_for_update().get(pk=job_id)
    if job.state not in JOB_FINAL:
        raise JobNotEnded(f"job {job.pk} is {job.state}: its state is in use", state=job.state)
    ranks = state_let_go(job=job, reason=reason)
    audit(viewer, "job_state_release", f"job:{job.pk}", {"reason": reason, "ranks": ranks})
    return ranks


def state_let_go(*, job: Job, reason: str) -> list[int]:
    """Of an attempt that is over and those before it nothing is kept, in memory or on disk; of which ranks.

    Every node that ever had a worker of it is told: what was written for a parking that was called off,
    or held by an agent that was away then, is in no row. The caller has the lock.
    """
    held = Worker.objects.filter(job=job, holds_state=True)
    ranks = {rank for rank in held.values_list("rank", flat=True) if rank is not None}
    held.update(holds_state=False)
    for parking in Parking.objects.filter(job=job).exclude(state=ParkingState.RESUMED):
        on_disk = {rank: note for rank, note in parking.ranks.items() if note["folder"]}
        if on_disk:
            ranks |= {int(rank) for rank in on_disk}
            gone = {rank: {**note, "folder": ""} for rank, note in on_disk.items()}
            parking.ranks = {**parking.ranks, **gone}
            parking.save(update_fields=["ranks"])
    body = protocol.StopOrder(
        job_id=str(job.pk), attempt=job.attempt, worker_ids=[], reason=reason, keep_state=False
    )
    nodes = Worker.objects.filter(job=job).order_by("node_id").values_list("node_id", flat=True)
    orders_create(job=job, bodies=dict.fromkeys(nodes.distinct(), body), deadline_s=STOP_DEADLINE_S)
    return sorted(ranks)


def job_restart(*, job: Job, workers: Iterable[Worker], reason: str) -> None:
    """Begin a new attempt. From which step it goes on its script tells. The caller has the lock."""
    orders_supersede(job=job, kinds=("launch", "interrupt", "pause", "regroup"))
    workers_stop(job=job, workers=workers, reason=reason)
    parking = selectors.parking_open_of(job)
    if parking is not None:
        parking_step(parking=parking, to=ParkingState.WITHDRAWN, words=f"a new attempt: {reason}")
    if Worker.objects.filter(job=job, holds_state=True).exists():
        # No attempt ever takes a rank from the one before it.
        state_let_go(job=job, reason=f"a new attempt: {reason}")
    job.attempt += 1
    job.generation = 0
    job.committed_step = 0
    job.save(update_fields=["attempt", "generation", "committed_step"])
    job_step(job=job, to=JobState.WAITING, reason=f"attempt {job.attempt}: {reason}")


def workers_stop(
    *, job: Job, workers: Iterable[Worker], reason: str, keep_state: bool = False
) -> None:
    """End these workers: one order per node, and to the platform they have ended now.

    ``keep_state``: what is in custody of them stays; their agents' reports say what that is.
    """
    by_node: dict[tuple[int, int], list[Worker]] = {}
    for worker in workers:
        if worker.state in WORKER_ALIVE:
            by_node.setdefault((worker.node_id, worker.attempt), []).append(worker)
    for (node_id, attempt), own in sorted(by_node.items()):
        stop_create(
            node_id=node_id,
            job=job,
            attempt=attempt,
            worker_ids=[worker.pk for worker in own],
            reason=reason,
            keep_state=keep_state,
        )
        for worker in own:
            worker_step(
                worker=worker,
                to=WorkerState.EXITED,
                reason=reason,
                is_stopping=True,
                holds_state=keep_state,
            )


def _limits_checked(given: dict[str, float]) -> dict[str, Any]:  # Any: JSON for a JSONField
    try:
        limits = msgspec.convert(given, Limits)
    except msgspec.ValidationError as error:
        raise InvalidField(f"limits: {error}", field="limits") from error
    data: dict[str, Any] = msgspec.to_builtins(limits)
    ordered = 0 < limits.stall_s < limits.collective_s < limits.blocked_s
    if not ordered or not all(seconds > 0 for seconds in data.values()):
        raise InvalidField(
            "limits must be ordered: 0 < stall_s < collective_s < blocked_s, and all above 0",
            field="limits",
        )
    too_long = [name for name, seconds in data.items() if not seconds <= LIMIT_S_MAX]
    if too_long:
        raise InvalidField(
            f"limits: {too_long[0]} is at most {LIMIT_S_MAX:g} s, which is a week", field="limits"
        )
    return data


def _command_checked(command: list[str], environment: dict[str, str]) -> None:
    if not command or not command[0]:
        raise InvalidField("a command has at least one word", field="command")
    words = [*command, *environment, *environment.values()]
    if any("\0" in word for word in words):
        raise InvalidField("no word may contain a zero byte", field="command")
    if sum(len(word.encode()) + 1 for word in words) > ARGV_BYTES_MAX:
        raise InvalidField(
            f"command and environment have at most {ARGV_BYTES_MAX} bytes", field="command"
        )
    taken = [
        name
        for name in environment
        if name.startswith(ENVIRONMENT_RESERVED) and name not in ENVIRONMENT_OWN
    ]
    if taken:
        raise InvalidField(f"{taken[0]} is set by the agent itself", field="environment")
    if any("=" in name or not name for name in environment):
        raise InvalidField("a variable's name has no '=' and is not empty", field="environment")


def _size_checked(cluster_id: int, pool: str, world_size: int, when_full: WhenFull) -> None:
    if when_full == WhenFull.WAIT:
        return
    nodes = node_reads.nodes_for_work(cluster_id, pool)
    num_slots = sum(len(node.gpus) for node in nodes)
    if world_size > num_slots:
        raise WorldSizeDoesNotFit(
            f"world size {world_size} does not fit: pool {pool} has {num_slots} GPU slots",
            world_size=world_size,
            slots=num_slots,
        )
    num_free = len(selectors.slots_free(nodes))
    if when_full == WhenFull.REFUSE and world_size > num_free:
        raise WorldSizeDoesNotFit(
            f"world size {world_size} does not fit now: {num_free} of {num_slots} slots are free",
            world_size=world_size,
            slots=num_free,
        )
