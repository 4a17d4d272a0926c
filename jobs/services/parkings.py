"""Parkings: one row each time a job gives its places up, from the wish to its return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from agent import protocol
from yoco_platform.core import clock
from yoco_platform.core.realtime import publish_on_commit

from ..errors import EventRefused
from ..models import Job, Parking, Worker
from ..selectors import parking_open_of
from ..states import JOB_FINAL, PARKING_STEPS, JobState, ParkingState, WorkerState
from .launches import limits_of
from .orders import order_create, orders_create, orders_supersede, stop_create
from .points import step_committed
from .steps import job_step, stepped, worker_step

WRITE_S_MIN = 300.0
"""Disks are slower than collectives: so long an agent may at least take to write its ranks."""


def parking_want(*, job: Job, for_job: Job, num_slots: int, reasons: Iterable[str]) -> Parking:
    """Ask for a job's places. Its own pass does the rest: nobody writes to two jobs at once."""
    now = clock.now()
    return Parking.objects.create(
        job=job,
        for_job=for_job,
        num_slots=num_slots,
        attempt=job.attempt,
        generation=job.generation,
        state=ParkingState.WANTED,
        state_since=now,
        reasons=list(reasons),
        wanted_at=now,
    )


def parking_step(*, parking: Parking, to: ParkingState, words: str, **fields: Any) -> None:
    """Take a parking to ``to``. Raises StepRefused."""
    before = stepped(parking, PARKING_STEPS, to, words=words, **fields)
    _shown(parking)
    _tell(parking, from_state=before)


def parking_waits(*, parking: Parking, words: str) -> None:
    """Say what a parked job waits for."""
    if parking.words != words:
        parking.words = words
        parking.save(update_fields=["words"])
        _shown(parking)
        _tell(parking, from_state=parking.state)


def parking_pause(*, parking: Parking, job: Job, workers: list[Worker]) -> None:
    """Ask every rank to agree on a fence and stop there."""
    parking_step(
        parking=parking,
        to=ParkingState.PAUSING,
        words="its ranks agree on a step to stop at",
        attempt=job.attempt,
        generation=job.generation,
    )
    body = protocol.PauseOrder(
        job_id=str(job.pk), attempt=job.attempt, generation=job.generation, migration_id=""
    )
    orders_create(
        job=job,
        bodies=dict.fromkeys(sorted({worker.node_id for worker in workers}), body),
        deadline_s=limits_of(job).collective_s,
    )


def parking_write(
    *, parking: Parking, job: Job, workers: list[Worker], step: int, store: protocol.StoreRef
) -> None:
    """All stand at fence ``step``: ask their agents to write them to disk. Nothing is ended yet."""
    words = f"its state at step {step} is being written"
    parking_step(parking=parking, to=ParkingState.WRITING, words=words, step=step, ranks={})
    ranks: dict[int, list[int]] = {}
    for worker in workers:
        assert worker.rank is not None
        ranks.setdefault(worker.node_id, []).append(worker.rank)
    bodies: dict[int, protocol.OrderBody] = {
        node_id: protocol.ParkOrder(
            job_id=str(job.pk),
            attempt=job.attempt,
            generation=job.generation,
            step=step,
            ranks=own,
            store=store,
        )
        for node_id, own in ranks.items()
    }
    deadline_s = max(limits_of(job).collective_s, WRITE_S_MIN)
    orders_create(job=job, bodies=bodies, deadline_s=deadline_s)


def parking_rank_written(*, job: Job, worker: Worker, body: protocol.RankParked) -> None:
    """An agent has a rank on its disk; it says so again whenever it starts. Raises EventRefused."""
    parking = parking_open_of(job)
    if parking is None or parking.generation != body.generation:
        raise EventRefused("not_parking")
    if worker.rank != body.rank:
        raise EventRefused("wrong_rank")
    if parking.step != body.step:
        raise EventRefused("wrong_step")
    note = {
        "node": worker.node.name,
        "step": body.step,
        "digest": body.digest[:64],
        "bytes_written": body.bytes_written,
        "folder": body.folder[:500],
    }
    parking.ranks = {**parking.ranks, str(body.rank): note}
    parking.save(update_fields=["ranks"])


def parked_in_vain(*, job: Job, node_id: int, body: protocol.RankParked) -> bool:
    """Whether nobody will come back from what an agent says it has on disk; it is let go then."""
    over = job.state in JOB_FINAL or (body.attempt, body.generation) < (job.attempt, job.generation)
    if not over or _is_kept(job, body):
        return False
    release = protocol.ReleaseOrder(
        job_id=str(job.pk),
        attempt=body.attempt,
        generation=body.generation + 1,
        ranks=[body.rank],
    )
    order_create(node_id=node_id, job=job, body=release)
    return True


def was_parked(worker: Worker) -> bool:
    """Whether it was ended because its job was parked: its state is what lies on disk, and nothing of what
    its process left behind."""
    return Parking.objects.filter(
        job_id=worker.job_id,
        attempt=worker.attempt,
        generation=worker.generation,
        parked_at__isnull=False,
    ).exists()


def _is_kept(job: Job, body: protocol.RankParked) -> bool:
    try:
        worker_id = UUID(body.worker_id)
    except ValueError:
        return False
    kept = Worker.objects.filter(job=job, attempt=job.attempt, holds_state=True)
    return kept.filter(pk=worker_id).exists()


def parking_done(*, parking: Parking, job: Job, workers: list[Worker], words: str) -> None:
    """Every rank is on disk: end the workers, whose agents keep what was written."""
    assert parking.step is not None
    orders_supersede(job=job, kinds=("pause", "park", "interrupt"))
    step_committed(job=job, step=parking.step)
    by_node: dict[int, list[Worker]] = {}
    for worker in workers:
        by_node.setdefault(worker.node_id, []).append(worker)
        worker_step(
            worker=worker,
            to=WorkerState.EXITED,
            reason=f"parked at step {parking.step}",
            custody="usable",
            holds_state=True,
            is_stopping=True,
            rung_at=None,
        )
    for node_id, own in sorted(by_node.items()):
        ids = [worker.pk for worker in own]
        reason = f"the job is parked at step {parking.step}"
        stop_create(node_id=node_id, job=job, attempt=job.attempt, worker_ids=ids, reason=reason)
    parking_step(parking=parking, to=ParkingState.PARKED, words=words, parked_at=clock.now())
    job_step(job=job, to=JobState.PARKED, reason=words)


def _shown(parking: Parking) -> None:
    """A parked job says itself what it waits for: lists need no second look."""
    words = parking.words if parking.state == ParkingState.PARKED else ""
    Job.objects.filter(pk=parking.job_id).exclude(waiting_for=words).update(waiting_for=words)


def _tell(parking: Parking, *, from_state: str) -> None:
    news = {
        "job_id": parking.job_id,
        "from_state": from_state,
        "to_state": str(parking.state),
        "words": parking.words,
    }
    publish_on_commit(f"job:{parking.job_id}", "parking", news)
    publish_on_commit("overview", "job", news)
