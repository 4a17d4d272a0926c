"""Who reports, and whether it may speak of that worker: refusals that every handler of a report shares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from agent import protocol

from ..errors import EventRefused
from ..models import Job, Worker
from ..states import JOB_FINAL, WORKER_ALIVE

if TYPE_CHECKING:
    from nodes.models import Node


@dataclass(frozen=True, kw_only=True)
class Report:
    """Who reports about which job (locked), and when."""

    node: Node
    job: Job
    occurred_at: datetime
    now: datetime


def worker_of(report: Report, body: protocol.RankEvent, *, of_ended: bool = False) -> Worker:
    """The worker a report is about: of this job, attempt and node. ``of_ended``: of an ended job, too."""
    try:
        worker_id = UUID(body.worker_id)
    except ValueError:
        raise EventRefused("unknown_worker") from None
    worker = Worker.objects.select_related("node").filter(pk=worker_id, job=report.job).first()
    if worker is None:
        raise EventRefused("unknown_worker")
    if worker.node_id != report.node.pk:
        raise EventRefused("not_your_worker")
    if body.attempt != report.job.attempt or worker.attempt != report.job.attempt:
        raise EventRefused("old_attempt")
    if report.job.state in JOB_FINAL and not of_ended:
        raise EventRefused("job_ended")
    return worker


def is_member(worker: Worker, job: Job) -> bool:
    """Whether this worker is a rank of the present generation."""
    return worker.rank is not None and worker.generation == job.generation


def member_of(report: Report, body: protocol.RankEvent, rank: int | None) -> Worker:
    """The worker of a report that only a rank of the present generation may make about itself."""
    worker = worker_of(report, body)
    if body.generation != report.job.generation or not is_member(worker, report.job):
        raise EventRefused("old_generation")
    if rank is not None and rank != worker.rank:
        raise EventRefused("wrong_rank")
    if worker.state not in WORKER_ALIVE:
        raise EventRefused("worker_ended")
    return worker


def historian_of(report: Report, body: protocol.RankEvent, rank: int) -> Worker:
    """The worker of a report about steps behind us: a member now, and of that rank."""
    worker = worker_of(report, body)
    if body.generation > report.job.generation or not is_member(worker, report.job):
        raise EventRefused("old_generation")
    if rank != worker.rank:
        raise EventRefused("wrong_rank")
    return worker
