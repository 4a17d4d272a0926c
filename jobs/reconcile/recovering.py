"""Something broke: stop the rest, decide when all have stopped, write the migration."""

from __future__ import annotations

from datetime import timedelta

from ..causes import Cause, Evidence, cause_of
from ..models import Incident, Migration, Move, Order
from ..recovery import GiveUp, Plan, Wait, plan
from ..services.incidents import (
    incident_cause_set,
    incident_end,
    incident_waits,
)
from ..services.jobs import job_restart, workers_stop
from ..services.launches import limits_of
from ..services.migrations import Ground, migration_begin, migration_fail
from ..services.steps import job_step
from ..states import (
    WORKER_ALIVE,
    IncidentState,
    JobState,
    MigrationState,
    OrderState,
    Verdict,
    WorkerState,
)
from .blaming import user_code
from .ending import job_failed
from .hanging import hanging_judged
from .interrupting import interrupt
from .parking import resume_broke, resume_held, stands_aside
from .preempting import SEPARATOR
from .restarting import incident_rolled_back, passed_over
from .silence import silence_judged
from .starting import ATTEMPTS_MAX
from .view import View, situation_of

MIGRATIONS_MAX = 12
"""So often one incident is tried before the checkpoint is taken."""


def recover(view: View) -> int:
    """One look at a job in trouble. Returns how many more warm standbys would help."""
    if view.job.state not in (JobState.RUNNING, JobState.RECOVERING):
        return 0
    if _never_joined(view) or stands_aside(view) or resume_held(view):
        return 0
    _migration_broken(view)
    if silence_judged(view):
        _migration_broken(view)
    hanging_judged(view)
    if view.migration is not None and view.migration.state != MigrationState.PAUSING:
        return 0
    if not _in_trouble(view) or user_code(view):
        return 0
    if view.job.generation > 1:
        _failed_targets_stopped(view)
    interrupt(view)
    return _decide(view)


def _in_trouble(view: View) -> bool:
    """A rank is gone, or waits for something other than a planned move that is being agreed on.

    So is a job whose last migration did not come through, whether or not anybody has noticed.
    """
    if view.lost:
        return True
    if view.migration is not None:
        return any(m.blocked_outcome != "paused" for m in view.blocked) or not view.going_on
    unresolved = view.incident is not None and view.incident.state == IncidentState.OPEN
    stranded = any(m.state == WorkerState.REJOINING for m in view.members)
    return bool(view.blocked) or unresolved or stranded


def _never_joined(view: View) -> bool:
    """A script that never joined is not protected: its loss is the job's."""
    lost = [m for m in view.lost if not m.fingerprint]
    joined = any(m.fingerprint for m in view.members)
    if not lost or joined:
        return False
    if all(m.exit_code == 0 for m in lost):
        return False
    job_failed(view, f"{lost[0].detail or 'a rank ended'}; the script had never joined")
    return True


# --- A migration that does not come through ---------------------------------------------------------


def _migration_broken(view: View) -> None:
    migration = view.migration
    if migration is None:
        return
    reason = _why_broken(view)
    if not reason:
        return
    migration_fail(migration=migration, incident=view.incident, reason=reason)
    resume_broke(view, reason)
    view.migration = None


def _why_broken(view: View) -> str:
    migration = view.migration
    assert migration is not None
    if migration.state == MigrationState.PAUSING:
        unpaused = migration.orders.filter(
            kind="pause", state__in=(OrderState.FAILED, OrderState.EXPIRED)
        ).exclude(code="superseded")
        refused = unpaused.select_related("node").first()
        return "" if refused is None else f"{refused.node.name} did not pause: {refused.code}"
    failed = migration.moves.exclude(failed_code="").first()
    if failed is not None:
        return f"rank {failed.rank} could not move: {failed.failed_message or failed.failed_code}"
    refused = (
        migration.orders.select_related("node")
        .filter(kind="regroup", state__in=(OrderState.FAILED, OrderState.EXPIRED))
        .exclude(code="superseded")
        .first()
    )
    if refused is not None and not _all_run(view):
        _blame(migration, refused)
        return f"{refused.node.name} did not regroup: {refused.message or refused.code}"
    if view.lost:
        ranks = ", ".join(str(m.rank) for m in view.lost)
        return f"rank {ranks} was lost in generation {view.job.generation}"
    if view.blocked:
        ranks = ", ".join(str(m.rank) for m in view.blocked)
        return f"rank {ranks} stopped again in generation {view.job.generation}"
    return ""


def _all_run(view: View) -> bool:
    return all(m.state == WorkerState.RUNNING for m in view.members)


def _blame(migration: Migration, refused: Order) -> None:
    """The moves that this node was to serve or to take have failed with its code."""
    for move in migration.moves.filter(failed_code=""):
        if refused.node_id == move.to_node_id or refused.node_id in move.source_node_ids:
            move.failed_code = refused.code or "order_failed"
            move.failed_message = refused.message
            move.save(update_fields=["failed_code", "failed_message"])


def _failed_targets_stopped(view: View) -> None:
    """A half-restored process is never run: its agent ends it, and to us it has ended."""
    failed = set(
        Move.objects.filter(
            migration__job=view.job,
            migration__attempt=view.job.attempt,
            migration__to_generation=view.job.generation,
            migration__state=MigrationState.FAILED,
        )
        .exclude(failed_code="")
        .values_list("to_worker_id", flat=True)
    )
    targets = [m for m in view.members if m.pk in failed and m.state in WORKER_ALIVE]
    workers_stop(job=view.job, workers=targets, reason="it could not take the rank over")


# --- Deciding ---------------------------------------------------------------------------------------


def _decide(view: View) -> int:
    decision = plan(situation_of(view))
    if isinstance(decision, Plan) and _tried(view) < MIGRATIONS_MAX:
        _go(view, decision)
        return 0
    if isinstance(decision, Plan):
        decision = GiveUp(
            code="out_of_tries",
            reason=f"{MIGRATIONS_MAX} migrations of this incident did not come through",
            resume_at=decision.resume_at,
        )
    if isinstance(decision, Wait):
        if _out_of_time(view):
            _give_up(
                view,
                GiveUp(
                    code="out_of_time",
                    reason=f"waited {limits_of(view.job).blocked_s:g} s: {decision.reason}",
                    resume_at=view.job.committed_step,
                ),
            )
            return 0
        if view.incident is not None and not _said(view.incident, decision.reason):
            incident_waits(incident=view.incident, words=decision.reason)
        return decision.standbys_missing
    _give_up(view, decision)
    return 0


def _said(incident: Incident, words: str) -> bool:
    """Whether it says so already, with what is done about it."""
    return incident.waiting_for.partition(SEPARATOR)[0] == words


def _tried(view: View) -> int:
    return 0 if view.incident is None else view.incident.migrations.count()


def _go(view: View, decision: Plan) -> None:
    if view.incident is not None:
        incident_cause_set(incident=view.incident, cause=_cause(view))
    ground = Ground(
        job=view.job,
        incident=view.incident,
        workers=view.workers,
        nodes=view.nodes,
        standbys=tuple(view.standbys),
    )
    view.migration = migration_begin(plan=decision, ground=ground, pausing=view.migration)


def _cause(view: View) -> Cause:
    """What broke, from the first rank that ended, then from silence, then from nobody's loss."""
    ended = sorted(
        (m for m in view.lost if m.state == WorkerState.EXITED), key=lambda m: m.state_since
    )
    if ended:
        first = ended[0]
        return cause_of(
            Evidence(
                exited=True,
                exit_code=first.exit_code,
                signal=first.signal,
                detail=first.detail,
                silent=first.custody == "unavailable" and first.signal is None,
            )
        )
    return cause_of(Evidence(silent=bool(view.lost)))


def _out_of_time(view: View) -> bool:
    incident = view.incident
    if incident is None:
        return False
    since = max(incident.observed_at, incident.state_since)
    return view.now - since > timedelta(seconds=limits_of(view.job).blocked_s)


def _give_up(view: View, decision: GiveUp) -> None:
    """Back to the script's own checkpoint, or to the start where nothing had been committed yet."""
    job, incident = view.job, view.incident
    last_try = job.attempt >= ATTEMPTS_MAX
    if incident is not None:
        incident_cause_set(incident=incident, cause=_cause(view))
        if decision.code == "before_first_commit":
            _nothing_lost(incident, decision)
        else:
            incident_rolled_back(job=job, incident=incident, decision=decision)
        view.incident = None
    if last_try:
        job_failed(view, f"launched {job.attempt} times: {decision.reason}")
        return
    if job.state == JobState.RUNNING:
        job_step(job=job, to=JobState.RECOVERING, reason=decision.reason)
    job_restart(job=job, workers=list(view.workers.values()), reason=decision.reason)


def _nothing_lost(incident: Incident, decision: GiveUp) -> None:
    incident_end(
        incident=incident,
        to=IncidentState.RESOLVED,
        verdict=Verdict.UNSUPPORTED,
        reason=decision.reason,
        lost_steps=0,
        proof=passed_over(decision),
    )
