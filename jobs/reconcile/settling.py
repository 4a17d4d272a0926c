"""The end of a migration: everybody has committed, the proof is made, what was kept is let go."""

from __future__ import annotations

from typing import Any

import msgspec

from agent import protocol

from ..models import AgentEvent, Incident, Migration, StateDigest
from ..services.incidents import incident_end, incident_open
from ..services.jobs import workers_stop
from ..services.stages import stage_begin, stage_end
from ..services.steps import incident_step, job_step, migration_step
from ..states import (
    WORKER_ALIVE,
    IncidentState,
    JobState,
    MigrationState,
    StageName,
    Verdict,
    WorkerState,
)
from ..verification import Claim, Commit, Level, Proof, Transfer, prove, redone_words
from .ending import state_release
from .view import View


def settle(view: View) -> bool:
    """Lead a migration from moving to done, and a job that runs again back to running."""
    migration = view.migration
    if migration is None:
        return _running_again(view)
    under_way = any(m.state == WorkerState.REJOINING for m in view.members)
    if migration.state == MigrationState.PAUSING or under_way:
        return False
    commits = first_commits(view, migration)
    everybody = len(commits) >= view.job.world_size
    # Whoever has committed has rejoined, even if it has finished or ended since.
    if migration.state == MigrationState.MOVING and (everybody or _everybody_runs(view)):
        _verifying(view, migration)
    if migration.state != MigrationState.VERIFYING or not everybody:
        return False
    _done(view, migration, commits)
    return True


def _everybody_runs(view: View) -> bool:
    return bool(view.members) and all(m.state == WorkerState.RUNNING for m in view.members)


def _running_again(view: View) -> bool:
    recovered = view.job.state == JobState.RECOVERING and view.incident is None
    if not recovered or not _everybody_runs(view):
        return False
    reason = f"generation {view.job.generation} runs"
    job_step(job=view.job, to=JobState.RUNNING, reason=reason)
    return True


def _verifying(view: View, migration: Migration) -> None:
    migration_step(
        migration=migration, to=MigrationState.VERIFYING, reason="every rank has rejoined"
    )
    rejoined = migration.stages.filter(name=StageName.REJOIN).first()
    at = None if rejoined is None else rejoined.ended_at
    stage_begin(migration=migration, name=StageName.VERIFY, at=at)
    if view.incident is not None and view.incident.state == IncidentState.RECOVERING:
        incident_step(
            incident=view.incident,
            to=IncidentState.VERIFYING,
            reason="every rank has rejoined; waiting for the first commit of each",
        )


def first_commits(view: View, migration: Migration) -> dict[int, Commit]:
    """The first commit of every rank in the new generation, as its agent reported it."""
    rows = AgentEvent.objects.filter(
        job=view.job,
        kind="rank_committed",
        refused_code="",
        body__attempt=view.job.attempt,
        body__generation=migration.to_generation,
    ).order_by("pk")
    commits: dict[int, Commit] = {}
    for row in rows:
        body = msgspec.convert(
            {k: v for k, v in row.body.items() if k != "type"}, protocol.RankCommitted, strict=False
        )
        commits.setdefault(
            body.rank,
            Commit(
                rank=body.rank,
                step=body.step,
                previous_step=body.previous_step,
                heads=_heads(body),
                batch_hash=body.batch_hash,
                redone_batch_hash=body.redone_batch_hash,
                redrawn_batch_hash=body.redrawn_batch_hash,
                redone_micro_batches=body.redone_micro_batches,
                replica_digest=body.replica_digest,
                pause_ms=body.pause_ms,
            ),
        )
    return commits


def _heads(body: protocol.RankCommitted) -> dict[int, str]:
    """What the rank says its trail had been: at its marks and, last word, at the step before."""
    marks = {int(at): head for at, head in body.trail_marks.items() if at.isdecimal()}
    return marks | (
        {body.previous_step: body.previous_trail_head} if body.previous_trail_head else {}
    )


def _done(view: View, migration: Migration, commits: dict[int, Commit]) -> None:
    claim = _claim(view, migration, commits)
    proof = prove(claim)
    stage_end(
        migration=migration,
        name=StageName.VERIFY,
        verdict=str(proof.verdict),
        doubt=proof.doubt,
    )
    migration_step(migration=migration, to=MigrationState.DONE, reason=proof.reason)
    if view.incident is None and proof.verdict != Verdict.COVERED:
        view.incident = _maintenance_broke(view, migration, proof)
    if view.incident is not None:
        incident_end(
            incident=view.incident,
            to=IncidentState.RESOLVED,
            verdict=proof.verdict,
            reason=proof.reason,
            lost_steps=proof.lost_steps,
            pause_ms=proof.pause_ms,
            proof=_evidence(migration, claim, proof),
        )
    view.incident, view.migration = None, None
    if view.job.state == JobState.RECOVERING:
        reason = f"generation {migration.to_generation} goes on with step {claim.resume_at + 1}"
        job_step(job=view.job, to=JobState.RUNNING, reason=reason)
    _let_go(view)


def _maintenance_broke(view: View, migration: Migration, proof: Proof) -> Incident:
    """A planned move that harmed the job is an interruption like any other, and on record as one."""
    assert migration.resume_at is not None
    moves = migration.moves.select_related("from_worker__node")
    incident = incident_open(
        job=view.job,
        workers=[view.workers[str(move.from_worker_id)] for move in moves],
        occurred_at=migration.created_at,
        summary=f"a planned move was not proved: {proof.reason}",
        broke=(migration.from_generation, migration.resume_at),
    )
    migration.incident = incident
    migration.save(update_fields=["incident"])
    return incident


def _let_go(view: View) -> None:
    """The new generation stands on its own: end who was left behind, free what was kept for it."""
    behind = [
        w
        for w in view.workers.values()
        if w.rank is not None and w.generation < view.job.generation and w.state in WORKER_ALIVE
    ]
    state_release(view, before=view.job.generation)
    workers_stop(job=view.job, workers=behind, reason="its rank has moved to another node")


def _claim(view: View, migration: Migration, commits: dict[int, Commit]) -> Claim:
    assert migration.resume_at is not None
    moves = list(migration.moves.all())
    committed = migration.resume_at if view.incident is None else view.incident.step
    return Claim(
        world_size=view.job.world_size,
        committed=committed,
        resume_at=migration.resume_at,
        streams={move.rank: move.num_streams for move in moves},
        transfers=[_transfer(data) for move in moves for data in move.transfers],
        commits=commits,
        replica_groups=[frozenset(m.replica_group) for m in view.members],
        trails=_trails(view, migration, migration.resume_at),
    )


def _transfer(data: dict[str, Any]) -> Transfer:  # Any: JSON of an event
    return Transfer(
        rank=data["rank"],
        holder=data["holder"],
        source_digest=data["source_digest"],
        target_digest=data["target_digest"],
    )


def _trails(view: View, migration: Migration, step: int) -> dict[int, tuple[int, str]]:
    """(step, head) of each rank's trail, known apart from the state that was moved.

    From the digests some jobs report, and from the header pages as agents read them before the move.
    """
    rows = StateDigest.objects.filter(
        job=view.job,
        attempt=view.job.attempt,
        step=step,
        generation__lt=view.job.generation,
    )
    told = {int(rank): (at, head) for rank, (at, head) in migration.trails.items()}
    exact = {row.rank: (step, row.trail_head) for row in rows if row.trail_head}
    return told | {
        rank: known for rank, known in exact.items() if told.get(rank, (-1, ""))[0] != step
    }


def _evidence(migration: Migration, claim: Claim, proof: Proof) -> dict[str, Any]:
    return {
        "transfer_verified": _level(proof.transfer),
        "continuity_verified": _level(proof.continuity),
        "replicas_agree": _level(proof.replicas),
        "resume_at": claim.resume_at,
        "redone_micro_batches": redone_words(claim.commits.values()),
        "migration_id": migration.pk,
        "generation": migration.to_generation,
        "transfers": [data for move in migration.moves.all() for data in move.transfers],
        "commits": [
            {
                "rank": commit.rank,
                "step": commit.step,
                "previous_step": commit.previous_step,
                "batch_hash": commit.batch_hash,
                "redone_batch_hash": commit.redone_batch_hash,
                "redrawn_batch_hash": commit.redrawn_batch_hash,
                "redone_micro_batches": commit.redone_micro_batches,
                "previous_trail_head": commit.heads.get(commit.previous_step, ""),
                **_known_head(claim, commit),
                "replica_digest": commit.replica_digest,
                "pause_ms": commit.pause_ms,
            }
            for commit in (claim.commits[rank] for rank in sorted(claim.commits))
        ],
    }


def _known_head(claim: Claim, commit: Commit) -> dict[str, Any]:
    """The head that was known of this rank before, at which step, and what its first commit says it was."""
    step, head = claim.trails.get(commit.rank, (None, ""))
    own = commit.heads.get(step, "") if step is not None else ""
    return {"known_trail_step": step, "known_trail_head": head, "trail_head_there": own}


def _level(level: Level) -> dict[str, Any]:
    return {"holds": level.holds, "words": level.words}
