"""What workers say and how they end, turned into what the platform hears."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypedDict

import msgspec
import structlog

from . import link
from .custody import CustodyRefused, close_all
from .protocol import (
    Checkpointed,
    CheckpointLoaded,
    EventBody,
    NotJoined,
    Points,
    RankBlocked,
    RankCommitted,
    RankCosts,
    RankExited,
    RankFinished,
    RankJoined,
    Rejoined,
    StandbyWarm,
    StateDigest,
    StateListed,
    WorkerStarted,
)
from .states import WorkerState
from .workers import Worker, Workers

_log = structlog.get_logger("yoco.reports")


class _Of(TypedDict):
    job_id: str
    attempt: int
    generation: int
    worker_id: str


def of(worker: Worker) -> _Of:
    """What every event about a worker begins with."""
    record = worker.record
    return {
        "job_id": record.job_id,
        "attempt": record.attempt,
        "generation": record.generation,
        "worker_id": record.worker_id,
    }


class Reporter:
    """Hears all workers. Order of calls: ``heard`` any number of times, ``exited`` once."""

    def __init__(self, workers: Workers, emit: Callable[[EventBody], object]) -> None:
        self._workers = workers
        self._emit_event = emit
        workers.on_message = self.heard
        workers.on_exit = self.exited

    def started(self, worker: Worker) -> None:
        self._emit(
            worker, WorkerStarted(rank=worker.record.rank, pid=worker.record.pid, **of(worker))
        )

    def watch_join(self, worker: Worker) -> None:
        """Say so when the script has not joined ``join_s`` after its start."""
        record = worker.record
        if not worker.alive or record.joined or record.state == WorkerState.NOT_JOINED:
            return
        left_s = max(record.started_at + record.limits.join_s - time.time(), 0.0)
        loop = asyncio.get_running_loop()
        worker.join_timer = loop.call_later(left_s, self.not_joined, worker)

    def not_joined(self, worker: Worker) -> None:
        """``join_s`` went by without a Hello."""
        if worker.alive and not worker.record.joined:
            worker.step(WorkerState.NOT_JOINED)
            self._emit(worker, NotJoined(rank=worker.record.rank, **of(worker)))

    def heard(self, worker: Worker, message: link.FromWorker, fds: list[int]) -> None:
        """One packet of a worker; ``fds`` go into custody or are closed."""
        try:
            if isinstance(message, link.Layout):
                worker.custody.take_layout(fds)
            elif isinstance(message, link.ArenaShared):
                if worker.custody.take_part(message, fds):
                    worker.say(link.ArenaKept(which=message.which, epoch=message.epoch))
            else:
                close_all(fds)
                self._words(worker, message)
        except CustodyRefused as error:
            _log.error("custody_refused", worker=worker.record.worker_id, reason=str(error))
        worker.notify()

    def _words(self, worker: Worker, message: link.FromWorker) -> None:
        match message:
            case link.Hello():
                self._joined_link(worker)
            case link.Joined():
                self._joined(worker, message)
            case link.Warm():
                worker.step(WorkerState.STANDBY)
                self._emit(
                    worker,
                    StandbyWarm(
                        provisional_rank=message.provisional_rank,
                        fingerprint=message.fingerprint,
                        **of(worker),
                    ),
                )
            case link.Blocked():
                self._blocked(worker, message)
            case link.AdoptReady():
                worker.adopt_ready = message.rank
            case link.AdoptFailed():
                worker.adopt_failed = message
            case link.Regrouped():
                self._regrouped(worker, message)
            case _:
                self._progress(worker, message)

    def _progress(self, worker: Worker, message: link.FromWorker) -> None:
        rank = worker.record.rank
        if rank is None:
            return  # a standby's sandboxed steps are nobody's progress
        match message:
            case link.Committed():
                self._committed(worker, message)
            case link.PointsMade():
                told = of(worker)
                told["generation"] = message.generation
                self._emit(worker, Points(rank=rank, points=message.points, **told))
            case link.DigestMade():
                step, digest, trail = message.step, message.digest, message.trail_head
                event = StateDigest(
                    rank=rank, step=step, digest=digest, trail_head=trail, **of(worker)
                )
                self._emit(worker, event)
            case link.StateListed():
                self._emit(
                    worker, StateListed(rank=rank, inventory=message.inventory, **of(worker))
                )
            case link.Raised():
                worker.exception = message.exception
            case link.CostsMeasured():
                event_of_costs = RankCosts(
                    rank=rank, step=message.step, costs=message.costs, **of(worker)
                )
                self._emit(worker, event_of_costs)
            case link.CheckpointMade():
                self._emit(worker, Checkpointed(rank=rank, step=message.step, **of(worker)))
            case link.CheckpointLoaded():
                self._emit(worker, CheckpointLoaded(rank=rank, step=message.step, **of(worker)))
            case link.Finished():
                worker.record.finished = True
                worker.save()
                finished = RankFinished(
                    rank=rank, step=message.step, trail_head=message.trail_head, **of(worker)
                )
                self._emit(worker, finished)

    def _joined_link(self, worker: Worker) -> None:
        worker.record.joined = True
        if worker.join_timer is not None:
            worker.join_timer.cancel()
        if worker.record.state == WorkerState.NOT_JOINED:
            worker.step(WorkerState.STARTING)
        worker.save()

    def _joined(self, worker: Worker, message: link.Joined) -> None:
        worker.record.replica_group = list(message.replica_group)
        worker.step(WorkerState.RUNNING)
        self._emit(
            worker,
            RankJoined(
                rank=message.rank,
                fingerprint=message.fingerprint,
                parallelism=message.parallelism,
                redundancy=message.redundancy,
                replica_group=message.replica_group,
                inventory=message.inventory,
                **of(worker),
            ),
        )

    def _blocked(self, worker: Worker, message: link.Blocked) -> None:
        record, position = worker.record, worker.custody.position()
        if message.generation < record.generation or record.rank is None or position is None:
            return
        if message.outcome != "stalled":  # a stalled rank is still inside its collective
            worker.blocked = message
            worker.step(WorkerState.BLOCKED)
        self._emit(
            worker,
            RankBlocked(
                rank=record.rank,
                outcome=message.outcome,
                position=msgspec.structs.replace(position, replica_digest=message.replica_digest),
                silent_s=message.silent_s,
                **of(worker),
            ),
        )

    def _regrouped(self, worker: Worker, message: link.Regrouped) -> None:
        record = worker.record
        if message.generation < record.generation:
            return
        worker.regrouped = record.generation = message.generation
        record.rank = message.rank
        worker.step(WorkerState.RUNNING)
        self._emit(
            worker,
            Rejoined(
                rank=message.rank,
                migration_id=record.migration_id,
                began_at=message.began_at,
                ended_at=message.ended_at,
                **of(worker),
            ),
        )

    def _committed(self, worker: Worker, message: link.Committed) -> None:
        if message.generation < worker.record.generation:
            return
        self._emit(
            worker,
            RankCommitted(
                rank=message.rank,
                migration_id=worker.record.migration_id,
                step=message.step,
                previous_step=message.previous_step,
                pause_ms=message.pause_ms,
                trail_head=message.trail_head,
                previous_trail_head=message.previous_trail_head,
                trail_marks=message.trail_marks,
                batch_hash=message.batch_hash,
                redone_batch_hash=message.redone_batch_hash,
                redrawn_batch_hash=message.redrawn_batch_hash,
                redone_micro_batches=message.redone_micro_batches,
                replica_digest=message.replica_digest,
                at=message.at,
                **of(worker),
            ),
        )

    def exited(self, worker: Worker) -> None:
        """Everything of the worker has ended: say so with what is still held of it."""
        record, ending = worker.record, worker.ending
        assert ending is not None
        dropped = record.rank is None or record.finished or worker.discard
        custody = "none" if dropped else worker.custody.state
        position = None if custody == "none" else worker.custody.position()
        detail = worker.detail or worker.last_line()
        self._emit(
            worker,
            RankExited(
                rank=record.rank,
                exit_code=ending.exit_code,
                signal=ending.signal,
                position=position,
                custody=custody,
                detail=detail,
                exception=worker.exception[:500],
                stood_s=worker.stood_s,
                stacks=worker.stacks,
                **of(worker),
            ),
        )
        if position is None:
            self._workers.forget(worker)

    def _emit(self, worker: Worker, event: EventBody) -> None:
        if not worker.record.local:
            self._emit_event(event)
