"""From submitted to running, and back to the start when there is nothing to recover."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from nodes import selectors as node_reads
from yoco_platform.core.models import Cluster

from .. import selectors
from ..models import Order, Worker
from ..placement import Seat, Slot, ranks_placed, standbys_placed
from ..services.incidents import incident_end
from ..services.jobs import job_restart
from ..services.launches import (
    buddies_of,
    generation_create,
    launches_create,
    provisional_ranks,
    workers_create,
)
from ..services.steps import job_step
from ..states import (
    IncidentState,
    JobState,
    OrderState,
    Verdict,
    WorkerState,
)
from .ending import job_failed
from .view import View

ATTEMPTS_MAX = 10
SAME_END_MAX = 3
"""Where no other node is free, so many ends by itself say that the script is at fault."""


def start(view: View) -> bool:
    """Place and launch a job that waits; True when something changed."""
    job = view.job
    if job.state not in (JobState.SUBMITTED, JobState.WAITING):
        return False
    # Two jobs must not see the same slot free: placements of a cluster follow one another.
    Cluster.objects.select_for_update(no_key=True).get(pk=job.cluster_id)
    nodes = node_reads.nodes_for_work(job.cluster_id, job.pool)
    free = selectors.slots_for(job, nodes)
    wanted = job.standbys if job.wants_protection else 0
    slots = ranks_placed(job.world_size, wanted, _preferred(view, free))
    slots = slots or ranks_placed(job.world_size, wanted, free)
    if slots is None:
        words = f"waiting for {job.world_size} free GPU slots in pool {job.pool}: {len(free)} are"
        if job.state == JobState.SUBMITTED:
            job_step(job=job, to=JobState.WAITING, reason=words)
        return False
    view.nodes |= {node.id: node for node in nodes}
    _launch(view, slots, _standby_slots(wanted, slots, free))
    names = ", ".join(sorted({slot.node_name for slot in slots}))
    job_step(job=job, to=JobState.STARTING, reason=f"{job.world_size} ranks on {names}")
    return True


def _preferred(view: View, free: list[Slot]) -> list[Slot]:
    """Slots off the nodes where a rank of an earlier attempt ended by itself."""
    failed = set(
        Worker.objects.filter(
            job=view.job, rank__isnull=False, exit_code__isnull=False, is_stopping=False
        ).values_list("node_id", flat=True)
    )
    return [slot for slot in free if slot.node_id not in failed]


def _standby_slots(wanted: int, slots: list[Slot], free: list[Slot]) -> list[Slot]:
    left = [slot for slot in free if slot not in slots]
    seats = [Seat(slot.node_id, slot.failure_domain) for slot in slots]
    return standbys_placed(wanted, left, seats, frozenset(slot.model for slot in slots))


def _launch(view: View, slots: list[Slot], spare: list[Slot]) -> None:
    job = view.job
    ranks = workers_create(job=job, generation=1, slots=slots, as_ranks=True)
    standbys = workers_create(
        job=job,
        generation=1,
        slots=spare,
        as_ranks=False,
        provisional=provisional_ranks(job.world_size, [], len(spare)),
    )
    by_rank = {worker.rank: worker for worker in ranks if worker.rank is not None}
    generation = generation_create(
        job=job,
        number=1,
        resume_at=0,
        store_node=view.nodes[ranks[0].node_id],
        ranks=by_rank,
    )
    launches_create(
        job=job,
        generation=generation,
        workers=[*ranks, *standbys],
        nodes=view.nodes,
        buddy_map=buddies_of(by_rank, view.nodes),
    )


def watch_start(view: View) -> bool:
    """A job that is starting: all there, or refused, or lost before its first step."""
    job = view.job
    if job.state != JobState.STARTING:
        return False
    refused = _launches(view, OrderState.FAILED).first()
    if refused is not None:
        job_failed(view, f"{refused.node.name} refused to launch it: {_words(refused)}")
        return True
    unseen = _launches(view, OrderState.EXPIRED).first()
    if unseen is not None:
        restart(view, f"{unseen.node.name} did not take its launch order")
        return True
    if _without_joining(view):
        return False
    if view.lost:
        _lost_at_start(view)
        return True
    joined = (WorkerState.RUNNING, WorkerState.NOT_JOINED, WorkerState.BLOCKED)
    if all(m.state in joined for m in view.members) and view.members:
        started = sum(1 for m in view.members if m.state != WorkerState.NOT_JOINED)
        reason = f"{started} of {job.world_size} ranks have joined"
        job_step(job=job, to=JobState.RUNNING, reason=reason)
        return True
    return False


def _without_joining(view: View) -> bool:
    """A script that does not join, of which some ranks have ended well: the others may still run."""
    ended_well = bool(view.lost) and all(m.exit_code == 0 for m in view.lost)
    return ended_well and not any(m.fingerprint for m in view.members)


def _launches(view: View, state: OrderState) -> QuerySet[Order]:
    """Launch orders of ranks of this attempt; a standby's launch does not decide about the job."""
    own = Q()
    for member in view.members:
        own |= Q(body__contains=str(member.pk))
    if not view.members:
        return Order.objects.none()
    orders = Order.objects.select_related("node").filter(
        own, job=view.job, attempt=view.job.attempt, kind="launch", state=state
    )
    return orders.exclude(code="superseded")


def _words(order: Order) -> str:
    return f"{order.message} ({order.code})" if order.message else order.code


def _lost_at_start(view: View) -> None:
    lost = view.lost
    first = min(lost, key=lambda worker: worker.state_since)
    words = first.detail or f"rank {first.rank} ended"
    if first.exit_code is None and first.signal is None and first.custody != "unavailable":
        job_failed(view, f"rank {first.rank} on {first.node.name} could not be started: {words}")
        return
    fault = _own_fault(view)
    if fault:
        job_failed(view, f"{fault}: {words}")
        return
    restart(view, f"rank {first.rank} was lost before the first step: {words}")


def _own_fault(view: View) -> str:
    """Why it is the script that fails, in words: by itself on two nodes, or thrice where it may be."""
    own = [worker for worker in view.lost if worker.exit_code is not None]
    # One that ended well before another failed is no second witness.
    own = [worker for worker in own if worker.exit_code] or own
    if not own:
        return ""
    before = {
        (attempt, node_id)
        for attempt, node_id, code in Worker.objects.filter(
            job=view.job, attempt__lt=view.job.attempt, exit_code__isnull=False, rank__isnull=False
        ).values_list("attempt", "node_id", "exit_code")
        if bool(code) == bool(own[0].exit_code)
    }
    words = (
        f"user code: rank {own[0].rank} ended by itself with exit code {own[0].exit_code} "
        f"before its first step"
    )
    if len({worker.node_id for worker in own} | {node_id for _, node_id in before}) > 1:
        return f"{words}, as it did on another node"
    times = len({attempt for attempt, _ in before}) + 1
    return f"{words}, {times} times" if times >= SAME_END_MAX else ""


def restart(view: View, reason: str) -> None:
    """Begin a new attempt: nothing of this one can go on."""
    if view.incident is not None:
        incident_end(
            incident=view.incident,
            to=IncidentState.RESOLVED,
            verdict=Verdict.UNSUPPORTED,
            reason=f"the job had not committed its first step, so nothing was lost: {reason}",
            lost_steps=0,
        )
        view.incident = None
    if view.job.attempt >= ATTEMPTS_MAX:
        job_failed(view, f"launched {view.job.attempt} times without coming through: {reason}")
        return
    job_restart(job=view.job, workers=list(view.workers.values()), reason=reason)
