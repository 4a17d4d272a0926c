"""What one pass over one job looks at, read once, and how the planner sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from agent.protocol import Position
from nodes import selectors as node_reads
from nodes.selectors import NodeView
from nodes.states import NodeState
from yoco_platform.core import clock

from ..models import Generation, Incident, Job, Migration, Parking, Worker
from ..recovery import Failure, Kept, Member, Place, Situation, Standby
from ..recovery.values import Condition, Custody
from ..selectors import began_at, incident_open_of, incidents_rolled_back, parking_open_of
from ..states import MIGRATION_OPEN, WORKER_ALIVE, OrderState, WorkerState

_RUNNING: Condition = "running"
_CONDITIONS: dict[str, Condition] = {
    WorkerState.BLOCKED: "blocked",
    WorkerState.EXITED: "exited",
    WorkerState.LOST: "silent",
}
_LEAVING = frozenset({NodeState.DRAINING, NodeState.QUARANTINED})


@dataclass
class View:
    """Rows of one job in one transaction. ``job`` is locked; the lists are in rank order."""

    job: Job
    now: datetime
    generation: Generation | None
    workers: dict[str, Worker]
    nodes: dict[int, NodeView]
    incident: Incident | None
    migration: Migration | None
    parking: Parking | None = None
    began_at: int = 0
    """step that this attempt went on after: loaded from the script's own checkpoint, or 0"""
    rolled_back: list[Incident] = field(default_factory=list)
    """of earlier attempts: they wait for what this one loads"""
    members: list[Worker] = field(default_factory=list)
    standbys: list[Worker] = field(default_factory=list)

    def node(self, worker: Worker) -> NodeView:
        return self.nodes[worker.node_id]

    @property
    def lost(self) -> list[Worker]:
        """Ranks that are gone, and did not go because they had finished."""
        return [m for m in self.members if m.state not in WORKER_ALIVE and not finished(m)]

    @property
    def blocked(self) -> list[Worker]:
        """Ranks that have stopped and keep everything."""
        return [m for m in self.members if condition_of(m) == "blocked"]

    @property
    def stalled(self) -> list[Worker]:
        """Ranks still inside a collective that takes too long: they may go on by themselves."""
        return [m for m in self.members if _is_stalled(m)]

    @property
    def going_on(self) -> list[Worker]:
        """Ranks that still move, or should."""
        return [m for m in self.members if condition_of(m) == _RUNNING]

    @property
    def leaving(self) -> list[Worker]:
        """Ranks on nodes that they should leave while they live."""
        return [m for m in self.members if m.state in WORKER_ALIVE and must_leave(self.node(m))]


def must_leave(node: NodeView) -> bool:
    """A finding says the node may fail, or somebody wants it empty. Silence alone moves nothing."""
    return (node.suspect or node.state in _LEAVING) and not node.silent


def finished(worker: Worker) -> bool:
    return worker.finished_step is not None and worker.exit_code in (None, 0)


def condition_of(worker: Worker) -> Condition:
    """A worker's state as the planner's four words. A stalled rank has not stopped."""
    return _RUNNING if _is_stalled(worker) else _CONDITIONS.get(worker.state, _RUNNING)


def _is_stalled(worker: Worker) -> bool:
    return worker.state == WorkerState.BLOCKED and worker.blocked_outcome == "stalled"


def view_of(job: Job) -> View:
    """Read everything a pass needs. The caller holds the job's lock."""
    workers = list(
        Worker.objects.select_related("node").filter(job=job, attempt=job.attempt).order_by("pk")
    )
    generation = Generation.objects.filter(
        job=job, attempt=job.attempt, number=job.generation
    ).first()
    nodes = {worker.node_id for worker in workers}
    if generation is not None:
        nodes.add(generation.store_node_id)
    view = View(
        job=job,
        now=clock.now(),
        generation=generation,
        workers={str(worker.pk): worker for worker in workers},
        nodes=node_reads.nodes_by_id(nodes),
        incident=incident_open_of(job),
        migration=Migration.objects.filter(job=job, state__in=MIGRATION_OPEN)
        .order_by("-pk")
        .first(),
        parking=parking_open_of(job),
        began_at=began_at(job),
        rolled_back=incidents_rolled_back(job),
    )
    view.members = sorted(
        (w for w in workers if w.rank is not None and w.generation == job.generation),
        key=lambda w: w.rank or 0,
    )
    view.standbys = [w for w in workers if w.rank is None and w.state in WORKER_ALIVE]
    return view


def situation_of(view: View) -> Situation:
    """The same, as frozen values for the planner."""
    return Situation(
        members=tuple(_member(view, worker) for worker in view.members),
        standbys=tuple(standby_of(view, worker) for worker in view.standbys),
        leaving=frozenset(m.rank for m in view.leaving if m.rank is not None),
        began_at=view.began_at,
        resumed_at=0 if view.generation is None else view.generation.resume_at,
        failures=tuple(_failures(view)),
    )


def _failures(view: View) -> Iterator[Failure]:
    """Moves of this incident that failed. A node whose agent refused its regroup order is the reason;
    of what only the target reports, any of those that served it may be."""
    if view.incident is None:
        return
    for migration in view.incident.migrations.prefetch_related("moves"):
        refused = set(
            migration.orders.filter(
                kind="regroup", state__in=(OrderState.FAILED, OrderState.EXPIRED)
            )
            .exclude(code="superseded")
            .values_list("node_id", flat=True)
        )
        for move in migration.moves.all():
            if not move.failed_code:
                continue
            serving = frozenset(move.source_node_ids)
            proven = serving & refused
            yield Failure(move.rank, move.source, proven or serving, proven=bool(proven))


def standby_of(view: View, worker: Worker) -> Standby:
    node = view.node(worker)
    return Standby(
        worker_id=str(worker.pk),
        place=place_of(node),
        warm=worker.state == WorkerState.STANDBY,
        fingerprint=worker.fingerprint,
        provisional_rank=worker.provisional_rank,
        reachable=not node.silent,
    )


def place_of(node: NodeView) -> Place:
    suspect = "" if node.takes_work else f"{node.name} is {node.state}"
    return Place(
        node_id=node.id, name=node.name, failure_domain=node.failure_domain, suspect=suspect
    )


def position_of(worker: Worker) -> Position | None:
    return None if worker.position is None else msgspec.convert(worker.position, Position)


def _member(view: View, worker: Worker) -> Member:
    assert worker.rank is not None
    return Member(
        rank=worker.rank,
        worker_id=str(worker.pk),
        place=place_of(view.node(worker)),
        condition=condition_of(worker),
        position=position_of(worker),
        custody=_custody(view, worker),
        replica_group=frozenset(worker.replica_group),
        kept=tuple(_kept(view, worker.rank)),
        fingerprint=worker.fingerprint,
    )


def _custody(view: View, worker: Worker) -> Custody:
    """What an exit report said, as long as the agent that said it can still be asked."""
    if worker.custody == "usable" and not view.node(worker).silent:
        return "usable"
    return "unavailable" if worker.custody in ("usable", "unavailable") else "none"


def _kept(view: View, rank: int) -> list[Kept]:
    """State of this rank that agents hold from earlier generations, newest first."""
    holders = [
        worker
        for worker in view.workers.values()
        if worker.rank == rank and worker.holds_state and worker.generation < view.job.generation
    ]
    if not holders:
        return []
    starts = dict(
        Generation.objects.filter(job=view.job, attempt=view.job.attempt).values_list(
            "number", "resume_at"
        )
    )
    kept: list[Kept] = []
    for worker in holders:
        position = position_of(worker)
        followed_by = worker.generation + 1
        if position is None or followed_by not in starts:
            continue
        node = view.node(worker)
        kept.append(
            Kept(
                worker_id=str(worker.pk),
                place=place_of(node),
                position=position,
                resume_at=starts[followed_by],
                live=worker.state == WorkerState.BLOCKED,
                reachable=not node.silent,
            )
        )
    return sorted(kept, key=lambda k: -view.workers[k.worker_id].generation)
