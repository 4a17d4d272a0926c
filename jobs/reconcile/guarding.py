"""Standbys kept warm, and what a job could lose right now, in words."""

from __future__ import annotations

from datetime import timedelta

from nodes import selectors as node_reads
from yoco_platform.core.models import Cluster
from yoco_platform.core.realtime import publish_on_commit

from .. import selectors
from ..models import Generation, Order, Stage, Worker
from ..placement import Seat, standbys_placed
from ..recovery import numerics_of, standby_refused
from ..services.incidents import incidents_protected_again
from ..services.jobs import workers_stop
from ..services.launches import (
    buddies_of,
    launches_create,
    provisional_ranks,
    workers_create,
)
from ..services.steps import worker_step
from ..states import (
    WORKER_ALIVE,
    JobState,
    MigrationState,
    OrderState,
    ProtectionState,
    StageName,
    WorkerState,
)
from .view import View, standby_of

FAILURES_MAX = 3
"""Standbys that ended by themselves on one node within FAILURES_WITHIN before it is left alone."""
FAILURES_WITHIN = timedelta(minutes=10)


def keep_standbys(view: View, missing: int) -> bool:
    """Launch what is missing of the wanted standbys; ``missing`` more when a plan waits for them."""
    job = view.job
    if not job.wants_protection or job.state not in (JobState.RUNNING, JobState.RECOVERING):
        return False
    if view.generation is None or not any(m.fingerprint for m in view.members):
        return False
    busy = view.migration is not None and view.migration.state != MigrationState.PAUSING
    if busy or (job.state == JobState.RECOVERING and not missing):
        # Warming takes processor time from the ranks that are coming back.
        return False
    _unlaunched_ended(view)
    _misplaced_stopped(view)
    usable = [s for s in view.standbys if not useless(view, s)]
    wanted = max(job.standbys, missing)
    return len(usable) < wanted and _launch(view, wanted - len(usable))


def _unlaunched_ended(view: View) -> None:
    """Standbys whose launch was refused or never taken: they will not come."""
    waiting = [s for s in view.standbys if s.state == WorkerState.ORDERED]
    if not waiting:
        return
    ended = Order.objects.filter(
        job=view.job, kind="launch", state__in=(OrderState.FAILED, OrderState.EXPIRED)
    ).order_by("-pk")
    for order in ended:
        for standby in waiting:
            if standby.state == WorkerState.ORDERED and str(standby.pk) in order.body:
                words = f"its launch was refused: {order.message or order.code}"
                worker_step(
                    worker=standby,
                    to=WorkerState.EXITED,
                    reason=words,
                    detail=words,
                    # The node is not to blame for an order that was overtaken.
                    is_stopping=order.code in ("old_generation", "superseded"),
                )
    view.standbys = [s for s in view.standbys if s.state in WORKER_ALIVE]


def _misplaced_stopped(view: View) -> None:
    """Standbys on nodes that may not take work are of no use, and in the way."""
    away = [
        s
        for s in view.standbys
        if not view.node(s).takes_work and (view.node(s).lost or not view.node(s).silent)
    ]
    workers_stop(job=view.job, workers=away, reason="its node may not take work now")
    view.standbys = [s for s in view.standbys if s.state in WORKER_ALIVE]


def useless(view: View, standby: Worker) -> bool:
    """Warm and yet not eligible: it does not count. One that still warms up does.

    While ranks are lost it must fit one of those; otherwise any.
    """
    numerics = numerics_of(m.fingerprint for m in view.lost or view.members)
    words = standby_refused(standby_of(view, standby), numerics)
    return standby.state == WorkerState.STANDBY and bool(words)


def _launch(view: View, count: int) -> bool:
    job = view.job
    Cluster.objects.select_for_update(no_key=True).get(pk=job.cluster_id)
    nodes = node_reads.nodes_for_work(job.cluster_id, job.pool)
    view.nodes |= {node.id: node for node in nodes}
    spare = [node for node in nodes if node.is_spare and node.id not in hopeless(view)]
    alive = [m for m in view.members if m.state in WORKER_ALIVE]
    seats = [Seat(m.node_id, view.node(m).failure_domain) for m in [*alive, *view.standbys]]
    slots = standbys_placed(count, selectors.slots_for(job, spare), seats, models_of(view))
    if not slots or view.generation is None:
        return False
    taken = [s.provisional_rank for s in view.standbys]
    lost = [m.rank for m in view.lost if m.rank is not None]
    workers = workers_create(
        job=job,
        generation=job.generation,
        slots=slots,
        as_ranks=False,
        provisional=provisional_ranks(job.world_size, taken, len(slots), lost),
    )
    ranks = {m.rank: m for m in view.members if m.rank is not None}
    launches_create(
        job=job,
        generation=view.generation,
        workers=workers,
        nodes=view.nodes,
        buddy_map=buddies_of(ranks, view.nodes),
        store=store_with_recordings(view, view.generation),
    )
    return True


def models_of(view: View) -> frozenset[str]:
    """GPU models of the ranks: another one cannot continue them bit by bit."""
    return frozenset(
        gpu.model
        for member in view.members
        for gpu in view.node(member).gpus
        if gpu.index == member.gpu_index
    )


def hopeless(view: View) -> set[int]:
    """Nodes where standbys of this job keep ending, or are warm with other numerics."""
    recent = view.now - FAILURES_WITHIN
    ends: dict[int, int] = {}
    for worker in view.workers.values():
        ended = worker.state == WorkerState.EXITED and worker.state_since > recent
        if worker.rank is None and ended and not worker.is_stopping:
            ends[worker.node_id] = ends.get(worker.node_id, 0) + 1
    other_numerics = {s.node_id for s in view.standbys if useless(view, s)}
    return {node_id for node_id, count in ends.items() if count >= FAILURES_MAX} | other_numerics


def store_with_recordings(view: View, generation: Generation) -> Generation:
    """The store that ranks have published their set-up in: that of the last generation that stood.

    A generation that is not through yet has none, and a standby would wait for it. When the store's
    agent is silent nothing is left of it, and any will do.
    """
    stood = generation
    if view.incident is not None and view.incident.generation != generation.number:
        stood = Generation.objects.get(
            job=view.job, attempt=view.job.attempt, number=view.incident.generation
        )
        nodes = node_reads.nodes_by_id([stood.store_node_id])
        view.nodes |= nodes
    return generation if view.nodes[stood.store_node_id].silent else stood


# --- Protection -------------------------------------------------------------------------------------


def judge_protection(view: View) -> bool:
    """Write what the job could lose right now, when it changed."""
    job = view.job
    state, reason = protection_of(view)
    if (job.protection, job.protection_reason) == (state, reason):
        return False
    job.protection, job.protection_reason = state, reason
    job.save(update_fields=["protection", "protection_reason"])
    news = {"job_id": job.pk, "protection": str(state), "reason": reason}
    publish_on_commit(f"job:{job.pk}", "protection", news)
    publish_on_commit("overview", "job", news)
    if state == ProtectionState.PROTECTED:
        incidents_protected_again(job=job)
    return True


def protection_of(view: View) -> tuple[ProtectionState, str]:
    """The state and the reason a person can act on."""
    job = view.job
    if not job.wants_protection:
        return ProtectionState.UNPROTECTED, "protection was not asked for"
    if job.state == JobState.PARKED:
        return ProtectionState.UNPROTECTED, "parked: its state is on disk, each rank on one node"
    if job.state not in (JobState.RUNNING, JobState.RECOVERING):
        return ProtectionState.UNPROTECTED, f"the job is {JobState(job.state).label}"
    strangers = [m for m in view.members if m.state == WorkerState.NOT_JOINED]
    if strangers:
        ranks = ", ".join(str(m.rank) for m in strangers)
        return ProtectionState.NEVER_JOINED, f"rank {ranks}: the script never called yoco.join()"
    if view.stalled:
        ranks = ", ".join(str(m.rank) for m in view.stalled)
        return ProtectionState.DEGRADED, f"rank {ranks} waits long in a collective"
    if job.committed_step <= view.began_at:
        return ProtectionState.UNPROTECTED, "no step has been committed yet"
    if _keeps_whole(view) and job.committed_step < view.began_at + 2:
        return ProtectionState.DEGRADED, "the copies on other nodes are made with the second step"
    if view.incident is not None:
        return ProtectionState.DEGRADED, f"recovering from {view.incident.number}"
    if view.migration is not None:
        return ProtectionState.DEGRADED, "ranks are being moved"
    doubt = _doubt(view)
    if doubt:
        return ProtectionState.DEGRADED, doubt
    return _by_standbys(view)


def _doubt(view: View) -> str:
    """What the last proof of this attempt says against the present state, until a later one holds.

    Ranks that hold different bytes could be healed from each other, and from neither with trust.
    """
    if view.job.generation < 2:
        return ""
    verified = (
        Stage.objects.filter(
            migration__job=view.job,
            migration__attempt=view.job.attempt,
            migration__state=MigrationState.DONE,
            name=StageName.VERIFY,
        )
        .select_related("migration")
        .order_by("-migration_id")
        .first()
    )
    doubt = "" if verified is None else verified.detail.get("doubt", "")
    if verified is None or not doubt:
        return ""
    return f"since generation {verified.migration.to_generation} not proved to be whole: {doubt}"


def _by_standbys(view: View) -> tuple[ProtectionState, str]:
    if view.job.standbys == 0:
        return ProtectionState.DEGRADED, "no standby was asked for"
    numerics = numerics_of(m.fingerprint for m in view.members)
    refused: list[str] = []
    warm = 0
    served: set[str] = set()
    for standby in view.standbys:
        words = standby_refused(standby_of(view, standby), numerics)
        if words:
            refused.append(f"standby on {standby.node.name}: {words}")
        else:
            warm += 1
            served.add(standby.fingerprint)
    if not warm:
        missing = "; ".join(refused) or "no free slot on a node that may take work"
        return ProtectionState.DEGRADED, f"no warm standby: {missing}"
    unserved = [m for m in view.members if m.fingerprint not in served]
    if unserved:
        words = f"no warm standby has the numerics of {_ranks(unserved)}"
        return ProtectionState.DEGRADED, "; ".join([words, *refused])
    lacking = _lost_with_a_node(view)
    if lacking:
        return ProtectionState.PROTECTED, (
            f"against the loss of processes; {'; '.join(lacking)}, "
            f"so the loss of its whole node is not covered"
        )
    if _keeps_whole(view):
        return ProtectionState.PROTECTED, f"{warm} warm standby; every rank is kept on another node"
    return ProtectionState.PROTECTED, (
        f"{warm} warm standby; every shard has a replica and every rank a buddy on another node"
    )


def _keeps_whole(view: View) -> bool:
    """Ranks are copied to other nodes, shards and all. A generation's copies are made before its first
    vote, so they are there once every rank has committed in it."""
    return _redundancy(view) == "buddy"


def _redundancy(view: View) -> str:
    """As the engine found it; "" before rank 0 has joined."""
    return str((view.job.inventory or {}).get("redundancy", ""))


def _lost_with_a_node(view: View) -> list[str]:
    """What would be gone with a whole node, in words: shards, and private state without a buddy."""
    home = {m.rank: m.node_id for m in view.members}
    alone = [
        m
        for m in view.members
        if not any(home.get(other, m.node_id) != m.node_id for other in m.replica_group)
    ]
    words: list[str] = []
    if alone and not _keeps_whole(view):
        words.append(f"no other node holds the shard of {_ranks(alone)}")
    if _redundancy(view) == "shadow":
        # Such ranks exchange no copies: the shard would be lost with the node anyway.
        others = [m for m in view.members if m not in alone]
        if others:
            words.append(f"under redundancy shadow {_ranks(others)} has no buddy on another node")
        return words
    ranks = {m.rank: m for m in view.members if m.rank is not None}
    mapped = buddies_of(ranks, view.nodes)
    unkept = [m for rank, m in sorted(ranks.items()) if str(rank) not in mapped]
    if unkept:
        words.append(f"{_ranks(unkept)} has no buddy on another node")
    return words


def _ranks(members: list[Worker]) -> str:
    return f"rank {', '.join(str(m.rank) for m in members)}"
