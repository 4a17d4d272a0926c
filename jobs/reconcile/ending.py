"""The ends of a job: finished, failed, cancelled; and what is cleared away afterwards."""

from __future__ import annotations

from agent.protocol import ReleaseOrder
from nodes import services as node_services
from yoco_platform.core.models import ApiToken

from ..models import Job, JobTransition, Parking, Worker
from ..recovery.positions import applied
from ..services.incidents import incident_end
from ..services.jobs import state_let_go, workers_stop
from ..services.migrations import migration_fail
from ..services.orders import STOP_DEADLINE_S, order_create
from ..services.parkings import parking_step
from ..services.steps import job_step
from ..states import (
    WORKER_ALIVE,
    IncidentState,
    JobState,
    ParkingState,
    Verdict,
    WorkerState,
)
from .restarting import restarts_judged
from .view import View, finished, position_of


def watch_finish(view: View) -> bool:
    """Finished once every rank's training function has returned."""
    if not _may_finish(view):
        return False
    if all(m.state == WorkerState.EXITED and m.exit_code == 0 for m in view.members) and not any(
        m.fingerprint for m in view.members
    ):
        reason = "the script ended; it had never joined"
        _end(view, JobState.FINISHED, reason, Verdict.UNSUPPORTED)
        return True
    last = returned_after(view)
    if last is None:
        return False
    _end(view, JobState.FINISHED, f"every rank has returned after step {last}")
    return True


def returned_after(view: View) -> int | None:
    """The step after which every rank's training function has returned; None while one has not."""
    last = max((m.finished_step for m in view.members if m.finished_step is not None), default=None)
    if last is None or not _may_finish(view) or not all(_is_done(m, last) for m in view.members):
        return None
    return last


def _may_finish(view: View) -> bool:
    job = view.job
    live = job.state in (JobState.RUNNING, JobState.STARTING, JobState.RECOVERING)
    return live and len(view.members) >= max(job.world_size, 1)


def _is_done(member: Worker, last: int) -> bool:
    """Returned, or ended after it had applied the very last step: nothing is left to compute."""
    if finished(member):
        return True
    position = position_of(member)
    return member.state not in WORKER_ALIVE and position is not None and applied(position) >= last


def job_failed(view: View, reason: str, verdict: Verdict = Verdict.UNSUPPORTED) -> None:
    """Fail a job in words. What agents hold of dead ranks is not released."""
    if view.incident is not None:
        incident_end(
            incident=view.incident,
            to=IncidentState.FAILED,
            verdict=verdict,
            reason=reason,
            lost_steps=None,
        )
        view.incident = None
    _end(view, JobState.FAILED, reason)


def _end(view: View, to: JobState, reason: str, verdict: Verdict = Verdict.EXCLUDED) -> None:
    if view.migration is not None:
        migration_fail(migration=view.migration, incident=None, reason=reason)
        view.migration = None
    if view.incident is not None:
        incident_end(
            incident=view.incident,
            to=IncidentState.RESOLVED,
            verdict=verdict,
            reason=reason,
            lost_steps=0,
            proof={"job_ended": str(to)},
        )
        view.incident = None
    job_step(job=view.job, to=to, reason=reason)


def clear_away(view: View) -> bool:
    """An ended job: stop what still runs, and let kept state go unless it failed."""
    job = view.job
    restarts_judged(view)
    node_services.paces_forgotten(job_id=job.pk, words=f"the job is {job.state}")
    if view.incident is not None or view.migration is not None:
        _close_what_was_open(view)
    if view.parking is not None:
        _parking_closed(view, view.parking)
    alive = [w for w in view.workers.values() if w.state in WORKER_ALIVE]
    keeping = [w for w in view.workers.values() if w.holds_state]
    if job.state != JobState.FAILED and keeping:
        # The last generation too: nothing comes after it.
        state_release(view, before=job.generation + 1)
    if job.state != JobState.FAILED and _older_kept(job):
        state_let_go(job=job, reason=f"the job is {job.state}: {job.end_reason}")
    if alive:
        workers_stop(job=job, workers=alive, reason=f"the job is {job.state}: {job.end_reason}")
    return bool(alive)


def _older_kept(job: Job) -> bool:
    """Whether agents hold state of an attempt before the last one."""
    kept = Worker.objects.filter(job=job, holds_state=True)
    return kept.exclude(attempt=job.attempt).exists()


def _parking_closed(view: View, parking: Parking) -> None:
    """What its agents have written of it already is kept state like any other."""
    for member in view.members:
        if str(member.rank) in parking.ranks and not member.holds_state:
            member.holds_state = True
            member.save(update_fields=["holds_state"])
    words = f"the job was {view.job.state}: {view.job.end_reason}"
    parking_step(parking=parking, to=ParkingState.WITHDRAWN, words=words)


def _close_what_was_open(view: View) -> None:
    job = view.job
    reason = f"the job was {job.state}: {job.end_reason}"
    if view.migration is not None:
        migration_fail(migration=view.migration, incident=None, reason=reason)
    if view.incident is None:
        return
    job_ended, verdict = _how_ended(job)
    incident_end(
        incident=view.incident,
        to=IncidentState.FAILED,
        verdict=verdict,
        reason=reason,
        lost_steps=None,
        proof={"job_ended": job_ended},
    )


def _how_ended(job: Job) -> tuple[str, Verdict]:
    """What the ledger is told of the end of a run with a failure still open, and our own word for it.

    What the customer ended is its own cause. What anybody else cancelled awaits a decision: whoever
    runs the platform could else hide what it does not heal.
    """
    if job.state == JobState.FINISHED:
        return "finished", Verdict.EXCLUDED
    if job.state == JobState.FAILED:
        return "", Verdict.MISSED
    if _cancelled_by_customer(job):
        return "cancelled_by_customer", Verdict.EXCLUDED
    return "cancelled_by_platform", Verdict.AWAITING


def _cancelled_by_customer(job: Job) -> bool:
    """Whether a token of the job's customer did it; names of tokens are not unique, so all must be."""
    step = JobTransition.objects.filter(job=job, to_state=JobState.CANCELLED).last()
    kind, _, name = ("" if step is None else step.actor).partition(":")
    if kind != "token":
        return False
    tokens = ApiToken.objects.filter(name=name, cluster_id=job.cluster_id)
    owners = set(tokens.values_list("customer_id", flat=True))
    return owners == {job.customer_id}


def state_release(view: View, *, before: int) -> None:
    """Order every agent that holds state of a rank from before that generation to let it go."""
    by_node: dict[int, set[int]] = {}
    for worker in view.workers.values():
        if worker.holds_state and worker.rank is not None:
            by_node.setdefault(worker.node_id, set()).add(worker.rank)
            worker.holds_state = False
            worker.save(update_fields=["holds_state"])
    for node_id, ranks in sorted(by_node.items()):
        body = ReleaseOrder(
            job_id=str(view.job.pk),
            attempt=view.job.attempt,
            generation=before,
            ranks=sorted(ranks),
        )
        # An agent that is away longer would keep what the platform has just forgotten.
        order_create(node_id=node_id, job=view.job, body=body, deadline_s=STOP_DEADLINE_S)
