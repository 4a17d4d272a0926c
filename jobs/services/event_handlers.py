"""What each kind of report changes. A handler raises EventRefused where nothing may change.

Which generation a report may speak of: what a rank did or proves belongs to the present generation
only; the end of a process is believed whenever the worker still is a rank, a standby or a holder of
state; points and digests of an earlier generation are history, taken from workers that are members.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from agent import protocol
from yoco_platform.core import clock

from ..causes import Evidence, cause_of, signal_name
from ..errors import EventRefused
from ..models import Generation, Job, Migration, Move, Parking, StateDigest, Worker
from ..recovery.positions import applied
from ..selectors import incident_open_of
from ..states import (
    JOB_FINAL,
    MIGRATION_OPEN,
    WORKER_ALIVE,
    MigrationState,
    ParkingState,
    StageName,
    WorkerState,
)
from .incidents import incident_exit_noted, incident_open, incident_stacks_noted
from .paces import own_ms_keep
from .parkings import parked_in_vain, parking_rank_written, was_parked
from .points import points_keep, step_committed, steps_check
from .reports import Report, historian_of, is_member, member_of, worker_of
from .stages import stage_begin, stage_end
from .steps import migration_tell, worker_kept, worker_step

if TYPE_CHECKING:
    pass


DAY_S = 86_400.0


def _migration(
    report: Report,
    body: Any,  # Any: has migration_id
    generation: int,
    *,
    ended: bool = False,
) -> Migration:
    """The running migration a report names; it must lead to the generation it speaks of."""
    text = body.migration_id
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0
    migration = Migration.objects.filter(pk=number, job=report.job).first()
    if migration is None:
        raise EventRefused("unknown_migration")
    over = migration.state not in MIGRATION_OPEN and not ended
    if over or migration.state == MigrationState.DONE or migration.to_generation != generation:
        raise EventRefused("old_generation")
    return migration


# --- Life of a worker -------------------------------------------------------------------------------


def worker_started(report: Report, body: protocol.WorkerStarted) -> None:
    worker = worker_of(report, body)
    if worker.state == WorkerState.ORDERED:
        worker_step(worker=worker, to=WorkerState.STARTING, reason=f"process {body.pid}")


def _begun(worker: Worker) -> Worker:
    """A worker that speaks has started, whether or not that report came through."""
    if worker.state == WorkerState.ORDERED:
        worker_step(worker=worker, to=WorkerState.STARTING)
    return worker


def not_joined(report: Report, body: protocol.NotJoined) -> None:
    worker = _begun(worker_of(report, body))
    if worker.state == WorkerState.STARTING:
        worker_step(worker=worker, to=WorkerState.NOT_JOINED, reason="it never called yoco.join()")


def rank_joined(report: Report, body: protocol.RankJoined) -> None:
    worker = _begun(member_of(report, body, body.rank))
    worker.fingerprint = body.fingerprint
    worker.replica_group = sorted(set(body.replica_group))
    worker.save(update_fields=["fingerprint", "replica_group"])
    if worker.state in (WorkerState.STARTING, WorkerState.NOT_JOINED):
        worker_step(worker=worker, to=WorkerState.RUNNING, reason="protect() returned")
    _keep_inventory(report, body)


def state_listed(report: Report, body: protocol.StateListed) -> None:
    member_of(report, body, body.rank)
    _keep_inventory(report, body)


def _keep_inventory(report: Report, body: protocol.RankJoined | protocol.StateListed) -> None:
    """One rank stands for all: what differs between them is their shards' sizes."""
    if body.rank == 0:
        report.job.parallelism = body.inventory.parallelism[:16]
        report.job.inventory = msgspec.to_builtins(body.inventory)
        report.job.save(update_fields=["parallelism", "inventory"])


def standby_warm(report: Report, body: protocol.StandbyWarm) -> None:
    worker = _begun(worker_of(report, body))
    if worker.rank is not None:
        raise EventRefused("not_a_standby")
    if worker.state in (WorkerState.STARTING, WorkerState.NOT_JOINED):
        worker_step(
            worker=worker,
            to=WorkerState.STANDBY,
            reason=f"warm as rank {body.provisional_rank}",
            fingerprint=body.fingerprint,
            provisional_rank=body.provisional_rank,
        )


def rank_finished(report: Report, body: protocol.RankFinished) -> None:
    worker = member_of(report, body, body.rank)
    _possible(report, body.step)
    worker.finished_step = body.step
    worker.save(update_fields=["finished_step"])
    step_committed(job=report.job, step=body.step)


# --- Trouble ----------------------------------------------------------------------------------------


def rank_blocked(report: Report, body: protocol.RankBlocked) -> None:
    """A rank waits. One that is only stalled is a witness against a silent agent, no incident."""
    worker = member_of(report, body, body.rank)
    fields = {
        "position": msgspec.to_builtins(body.position),
        "blocked_outcome": body.outcome,
        "rung_at": None,
    }
    words = f"waits at step {max(body.position.fence, 0)}: {body.outcome}"
    if worker.state == WorkerState.BLOCKED:
        Worker.objects.filter(pk=worker.pk).update(**fields)
    else:
        worker_step(worker=_begun(worker), to=WorkerState.BLOCKED, reason=words, **fields)
    if body.outcome == "stalled" or (body.outcome == "paused" and _pausing(report.job)):
        return
    if incident_open_of(report.job) is not None:
        return
    incident_open(
        job=report.job,
        workers=[],
        occurred_at=report.occurred_at,
        summary=f"rank {worker.rank} on {worker.node.name} {words}",
    )


def _pausing(job: Job) -> bool:
    # An agent that restarts while ranks are written hears again that they are paused.
    stands_aside = Parking.objects.filter(
        job=job, state__in=(ParkingState.PAUSING, ParkingState.WRITING)
    )
    return (
        Migration.objects.filter(job=job, state=MigrationState.PAUSING).exists()
        or stands_aside.exists()
    )


def rank_parked(report: Report, body: protocol.RankParked) -> None:
    if not parked_in_vain(job=report.job, node_id=report.node.pk, body=body):
        parking_rank_written(job=report.job, worker=worker_of(report, body), body=body)


def rank_exited(report: Report, body: protocol.RankExited) -> None:
    worker = worker_of(report, body, of_ended=True)
    if worker.is_stopping and worker.holds_state:
        if not was_parked(worker):
            worker_kept(worker=worker, told=body)
        return
    if report.job.state in JOB_FINAL:
        raise EventRefused("job_ended")
    member = is_member(worker, report.job)
    standby = worker.rank is None
    if not (member or standby or worker.holds_state) or worker.state not in WORKER_ALIVE:
        raise EventRefused("old_generation")
    words = exit_words(worker, body)
    ran = worker.state == WorkerState.RUNNING
    worker_step(
        worker=worker,
        to=WorkerState.EXITED,
        reason=words,
        exit_code=body.exit_code,
        signal=body.signal,
        detail=body.detail[:2000],
        exception=body.exception[:500],
        standing=None,
        standing_at=None,
        position=None if body.position is None else msgspec.to_builtins(body.position),
        custody=body.custody,
        holds_state=worker.rank is not None and body.custody == "usable",
        rung_at=None,
    )
    expected = worker.is_stopping or (worker.finished_step is not None and body.exit_code == 0)
    if member and not expected:
        _rank_lost(report, worker, body, words, ran)


def _rank_lost(
    report: Report, worker: Worker, body: protocol.RankExited, words: str, ran: bool
) -> None:
    cause = cause_of(
        Evidence(exited=True, exit_code=body.exit_code, signal=body.signal, detail=body.detail)
    )
    incident = incident_open(
        job=report.job,
        workers=[worker],
        # One that hung was lost when it stopped moving, not when it was ended.
        occurred_at=report.occurred_at - timedelta(seconds=min(max(body.stood_s, 0.0), DAY_S)),
        summary=words if not body.stood_s else f"{words}: {body.detail[:500]}",
        cause=cause,
    )
    if body.stacks:
        incident_stacks_noted(incident=incident, worker=worker, stacks=body.stacks)
    step = report.job.committed_step if body.position is None else applied(body.position)
    incident_exit_noted(incident=incident, worker=worker, step=step, ran=ran)


def exit_words(worker: Worker, body: protocol.RankExited) -> str:
    """How a process ended, as the start of a sentence."""
    who = "a standby" if worker.rank is None else f"rank {worker.rank}"
    where = f"{who} on {worker.node.name}"
    if body.signal is not None:
        return f"{where} was ended by {signal_name(body.signal)}"
    if body.exit_code is not None:
        return f"{where} ended by itself with exit code {body.exit_code}"
    return f"{where} could not be started: {body.detail}"


# --- A migration's news -----------------------------------------------------------------------------


def transferred(report: Report, body: protocol.Transferred) -> None:
    migration = _migration(report, body, body.generation)
    move = _move_of(report, body, migration)
    move.transfers = [*move.transfers, msgspec.to_builtins(body)]
    move.save(update_fields=["transfers"])
    began_at, ended_at = clock.from_epoch(body.began_at), clock.from_epoch(body.ended_at)
    stage_end(migration=migration, name=StageName.RESERVE, at=began_at)
    stage_begin(migration=migration, name=StageName.TRANSFER, at=began_at)
    stage_end(migration=migration, name=StageName.TRANSFER, at=ended_at)
    news = {
        "rank": body.rank,
        "holder": body.holder,
        "carrier": body.carrier,
        "bytes": body.bytes_moved,
        "equal": body.source_digest == body.target_digest,
    }
    migration_tell(migration, "transfer", news)


def rank_rejoined(report: Report, body: protocol.Rejoined) -> None:
    migration = _migration(report, body, body.generation)
    worker = member_of(report, body, body.rank)
    began_at, ended_at = clock.from_epoch(body.began_at), clock.from_epoch(body.ended_at)
    before = migration.stages.filter(name=StageName.TRANSFER).first()
    if before is None:
        stage_end(migration=migration, name=StageName.RESERVE, at=began_at)
    elif before.ended_at is not None:
        # Survivors wait for the newcomer: what they do before the bytes are there is not rejoining.
        began_at = max(began_at, before.ended_at)
    stage_begin(migration=migration, name=StageName.REJOIN, at=began_at)
    stage_end(migration=migration, name=StageName.REJOIN, at=ended_at)
    if worker.state == WorkerState.REJOINING:
        worker_step(worker=worker, to=WorkerState.RUNNING, reason="stands in the new group")


def rank_committed(report: Report, body: protocol.RankCommitted) -> None:
    worker = member_of(report, body, body.rank)
    _possible(report, body.step, body.previous_step)
    if worker.state != WorkerState.RUNNING:
        worker_step(worker=_begun(worker), to=WorkerState.RUNNING, reason=f"step {body.step}")
    step_committed(job=report.job, step=body.step)


def migration_failed(report: Report, body: protocol.MigrationFailed) -> None:
    """Believed of a migration that has failed already, too: its target must not be waited for."""
    migration = _migration(report, body, body.generation, ended=True)
    if body.generation != report.job.generation:
        raise EventRefused("old_generation")
    move = _move_of(report, body, migration)
    move.failed_code, move.failed_message = body.code[:40], body.message[:2000]
    move.save(update_fields=["failed_code", "failed_message"])


def _move_of(report: Report, body: Any, migration: Migration) -> Move:  # Any: has rank
    """The move of one rank; only the node it goes to speaks of it."""
    worker = worker_of(report, body)
    move = migration.moves.filter(rank=body.rank).first()
    if move is None or move.to_worker_id != worker.pk:
        raise EventRefused("not_your_move")
    return move


# --- History ----------------------------------------------------------------------------------------


def points(report: Report, body: protocol.Points) -> None:
    worker = historian_of(report, body, body.rank)
    _possible(report, *(point[0] for point in body.points))
    stalled = worker.state == WorkerState.BLOCKED and worker.blocked_outcome == "stalled"
    if stalled and body.generation == report.job.generation:
        worker_step(
            worker=worker,
            to=WorkerState.RUNNING,
            reason="its collective came through",
            blocked_outcome="",
        )
    points_keep(job=report.job, body=body)


def state_digest(report: Report, body: protocol.StateDigest) -> None:
    historian_of(report, body, body.rank)
    StateDigest.objects.get_or_create(
        job=report.job,
        attempt=body.attempt,
        generation=body.generation,
        rank=body.rank,
        step=body.step,
        defaults={"digest": body.digest[:64], "trail_head": body.trail_head[:64]},
    )


COSTS = (
    "prepare_ms", "vote_ms", "private_bytes", "shadow_bytes", "shadow_ms", "buddy_bytes", "buddy_ms",
    "buddy_wait_ms", "micro_batch_bytes", "micro_batch_store_ms", "micro_batch_agree_ms",
)  # fmt: skip
"""What a rank may say about the cost of a step; see agent.protocol.RankCosts."""


def rank_costs(report: Report, body: protocol.RankCosts) -> None:
    """Of rank 0, as the inventory is: the last measurement stands. Of each rank its own time is kept."""
    worker = historian_of(report, body, body.rank)
    _possible(report, body.step)
    job = report.job
    own_ms_keep(job=job, worker=worker, body=body)
    if body.rank == 0 and body.attempt == job.attempt:
        measured = {key: round(body.costs[key], 3) for key in COSTS if key in body.costs}
        job.costs = {**measured, "step": body.step}
        job.save(update_fields=["costs"])


def checkpointed(report: Report, body: protocol.Checkpointed) -> None:
    historian_of(report, body, body.rank)
    _possible(report, body.step)
    if body.step > (report.job.checkpoint_step or -1):
        report.job.checkpoint_step = body.step
        report.job.save(update_fields=["checkpoint_step"])


def checkpoint_loaded(report: Report, body: protocol.CheckpointLoaded) -> None:
    """What every rank loads alike, or their first vote fails: the first to say it speaks for all."""
    member_of(report, body, body.rank)
    _possible(report, body.step)
    if body.generation != 1:
        raise EventRefused("not_at_the_start")
    first = Generation.objects.filter(job=report.job, attempt=body.attempt, number=1, resume_at=0)
    if first.update(resume_at=body.step):
        step_committed(job=report.job, step=body.step)


def _possible(report: Report, *steps: int) -> None:
    steps_check(job=report.job, steps=steps, now=report.now)


HANDLERS: dict[type[protocol.RankEvent], Callable[[Report, Any], None]] = {
    protocol.WorkerStarted: worker_started,
    protocol.NotJoined: not_joined,
    protocol.RankJoined: rank_joined,
    protocol.StateListed: state_listed,
    protocol.StandbyWarm: standby_warm,
    protocol.RankBlocked: rank_blocked,
    protocol.RankExited: rank_exited,
    protocol.RankParked: rank_parked,
    protocol.Rejoined: rank_rejoined,
    protocol.Transferred: transferred,
    protocol.RankCommitted: rank_committed,
    protocol.Points: points,
    protocol.StateDigest: state_digest,
    protocol.RankCosts: rank_costs,
    protocol.Checkpointed: checkpointed,
    protocol.CheckpointLoaded: checkpoint_loaded,
    protocol.RankFinished: rank_finished,
    protocol.MigrationFailed: migration_failed,
}
