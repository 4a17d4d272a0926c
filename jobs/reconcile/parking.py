"""A job gives its places up for a higher one and comes back: paused, written to disk, ended, taken up again.

Its own pass does all of it, under its own lock; whoever wants the places only writes the wish.
"""

from __future__ import annotations

import math
from datetime import timedelta

from nodes import selectors as node_reads
from yoco_platform.core.models import Cluster

from .. import selectors
from ..models import Order, Parking
from ..placement import Slot, ranks_placed
from ..services.incidents import incident_open
from ..services.jobs import workers_stop
from ..services.launches import buddies_of, launches_create, limits_of, workers_create
from ..services.orders import orders_supersede, store_ref
from ..services.parkings import (
    parking_done,
    parking_pause,
    parking_step,
    parking_waits,
    parking_write,
)
from ..services.steps import job_step
from ..states import JobState, OrderState, ParkingState, WorkerState
from ..wakeups import reconcile_soon
from .guarding import models_of, store_with_recordings
from .moving import quiet
from .view import View, position_of

_TAKEN = "a job of higher priority took its places"
"""Whose job that is may be none of its owner's business."""
RETRY_AFTER = timedelta(seconds=60)
"""A job that could not come back is left parked for this long."""
WARMING_S = 60.0
"""Beside ``join_s``: so long may the standbys of a job that comes back take to warm."""


# --- Giving places up -------------------------------------------------------------------------------


def begin_parking(view: View) -> None:
    """Ask the ranks to stop, where the places are still wanted and nothing else is going on."""
    parking = view.parking
    if parking is None or parking.state != ParkingState.WANTED:
        return
    wanting = parking.for_job
    if wanting.state != JobState.RECOVERING or not wanting.slots_missing:
        words = "its places are not needed any more"
        parking_step(parking=parking, to=ParkingState.WITHDRAWN, words=words)
        view.parking = None
    elif quiet(view):
        parking_pause(parking=parking, job=view.job, workers=view.members)


def stands_aside(view: View) -> bool:
    """Lead a job whose ranks stop to being parked; True while nothing else is to be done with them."""
    parking = view.parking
    if parking is None or parking.state not in (ParkingState.PAUSING, ParkingState.WRITING):
        return False
    trouble = _trouble(view, parking)
    if trouble:
        orders_supersede(job=view.job, kinds=("pause", "park"))
        words = f"not parked: {trouble}"
        parking_step(parking=parking, to=ParkingState.FAILED, words=words)
        view.parking = None
        return False
    if parking.state == ParkingState.PAUSING:
        _write_once_paused(view, parking)
    elif len(parking.ranks) == view.job.world_size:
        _parked(view, parking)
    return True


def _trouble(view: View, parking: Parking) -> str:
    if view.incident is not None:
        return f"{view.incident.number} was opened meanwhile"
    if view.lost:
        return f"rank {view.lost[0].rank} was lost meanwhile"
    patience_s = limits_of(view.job).collective_s
    if parking.state == ParkingState.PAUSING and (
        view.now - parking.state_since > timedelta(seconds=patience_s)
    ):
        return f"its ranks agreed on no fence within {patience_s:g} s"
    gone = [m for m in view.members if view.node(m).lost]
    if gone:
        return f"{gone[0].node.name} was lost meanwhile"
    for member in view.blocked:
        if member.blocked_outcome != "paused":
            return f"rank {member.rank} stopped otherwise: {member.blocked_outcome}"
    refused = (
        Order.objects.select_related("node")
        .filter(
            job=view.job,
            kind__in=("pause", "park"),
            attempt=view.job.attempt,
            generation=view.job.generation,
            created_at__gte=parking.wanted_at,
            state__in=(OrderState.FAILED, OrderState.EXPIRED),
        )
        .exclude(code="superseded")
        .first()
    )
    if refused is None:
        return ""
    return f"{refused.node.name} did not {refused.kind}: {refused.message or refused.code}"


def _write_once_paused(view: View, parking: Parking) -> None:
    if len(view.blocked) < view.job.world_size or view.generation is None:
        return
    steps = {position.fence for m in view.members if (position := position_of(m)) is not None}
    generation = view.generation
    store_node = view.nodes[generation.store_node_id]
    parking_write(
        parking=parking,
        job=view.job,
        workers=view.members,
        step=max(steps),
        store=store_ref(store_node, generation.store_prefix, generation.store_secret),
    )


def _parked(view: View, parking: Parking) -> None:
    words = _words(view, parking, view.job.world_size, _TAKEN)
    parking_done(parking=parking, job=view.job, workers=view.members, words=words)
    workers_stop(job=view.job, workers=view.standbys, reason="the job is parked")
    reconcile_soon()


def _words(view: View, parking: Parking, num_missing: int, why: str) -> str:
    per_node = max((len(view.node(m).gpus) for m in view.members), default=1)
    count = max(math.ceil(num_missing / max(per_node, 1)), 1)
    nodes = f"{count} node" if count == 1 else f"{count} nodes"
    return f"parked at step {parking.step}, waiting for {nodes}: {why}"


# --- Coming back ------------------------------------------------------------------------------------


def come_back(view: View) -> bool:
    """Start a parked job's ranks as standbys where they fit; True for a job that is parked."""
    job, parking = view.job, view.parking
    if job.state != JobState.PARKED:
        return False
    if parking is None or parking.state != ParkingState.PARKED or view.generation is None:
        return True
    silent = [m for m in view.members if view.node(m).silent]
    if silent:
        words = f"{silent[0].node.name}, which keeps rank {silent[0].rank}, is not heard"
        parking_waits(parking=parking, words=f"parked at step {parking.step}: {words}")
        return True
    if parking.tried_at is not None and view.now - parking.tried_at < RETRY_AFTER:
        return True
    Cluster.objects.select_for_update(no_key=True).get(pk=job.cluster_id)
    nodes = node_reads.nodes_for_work(job.cluster_id, job.pool)
    models = models_of(view)
    free = [slot for slot in selectors.slots_for(job, nodes) if not models or slot.model in models]
    slots = ranks_placed(job.world_size, 0, free)
    if slots is None:
        why = f"{len(free)} of {job.world_size} places are free"
        words = _words(view, parking, job.world_size - len(free), why)
        parking_waits(parking=parking, words=words)
        return True
    view.nodes |= {node.id: node for node in nodes}
    _resume(view, parking, slots)
    return True


def _resume(view: View, parking: Parking, slots: list[Slot]) -> None:
    job = view.job
    assert view.generation is not None
    names = ", ".join(sorted({slot.node_name for slot in slots}))
    words = f"comes back from step {parking.step} on {names}"
    parking_step(parking=parking, to=ParkingState.RESUMING, words=words)
    job_step(job=job, to=JobState.RECOVERING, reason=words)
    ranks = {m.rank: m for m in view.members if m.rank is not None}
    standbys = workers_create(
        job=job,
        generation=job.generation,
        slots=slots,
        as_ranks=False,
        provisional=range(job.world_size),
    )
    launches_create(
        job=job,
        generation=view.generation,
        workers=standbys,
        nodes=view.nodes,
        buddy_map=buddies_of(ranks, view.nodes),
        store=store_with_recordings(view, view.generation),
    )


def resume_held(view: View) -> bool:
    """Whether a job that comes back must wait for an agent, or is parked again: nothing is decided then.

    Nothing is lost by either.
    """
    job, parking = view.job, view.parking
    if parking is None or parking.state != ParkingState.RESUMING:
        return False
    if view.migration is not None or not _is_of_now(view, parking):
        return False
    silent = [m for m in view.members if view.node(m).silent]
    patience = timedelta(seconds=limits_of(job).join_s + WARMING_S)
    if view.now - parking.state_since <= patience:
        return bool(silent)  # without its answer the planner would take that state for lost
    if silent:
        why = f"{silent[0].node.name}, which keeps rank {silent[0].rank}, is not heard"
    else:
        warm = sum(1 for s in view.standbys if s.state == WorkerState.STANDBY)
        why = f"{warm} of {job.world_size} standbys were warm after {patience.total_seconds():g} s"
    words = f"parked at step {parking.step}: it could not come back, {why}"
    parking_step(parking=parking, to=ParkingState.PARKED, words=words, tried_at=view.now)
    job_step(job=job, to=JobState.PARKED, reason=words)
    workers_stop(job=job, workers=view.standbys, reason=words)
    return True


def resume_broke(view: View, reason: str) -> None:
    """What was parked could not be taken up: an interruption like any other from here on."""
    parking, migration = view.parking, view.migration
    if parking is None or parking.state != ParkingState.RESUMING or parking.step is None:
        return
    words = f"what was parked at step {parking.step} could not be taken up: {reason}"
    parking_step(parking=parking, to=ParkingState.FAILED, words=words)
    view.parking = None
    if view.incident is None:
        view.incident = incident_open(
            job=view.job,
            workers=[],
            occurred_at=view.now,
            summary=words,
            broke=(parking.generation, parking.step),
        )
    if migration is not None and migration.incident_id is None:
        migration.incident = view.incident
        migration.save(update_fields=["incident"])


def _is_of_now(view: View, parking: Parking) -> bool:
    return (parking.attempt, parking.generation) == (view.job.attempt, view.job.generation)


def note_return(view: View) -> None:
    """The job trains again."""
    parking, job = view.parking, view.job
    if parking is None or parking.state != ParkingState.RESUMING or view.migration is not None:
        return
    if job.state == JobState.RUNNING and job.generation > parking.generation:
        words = f"went on after step {parking.step} in generation {job.generation}"
        parking_step(parking=parking, to=ParkingState.RESUMED, words=words, resumed_at=view.now)
        view.parking = None
