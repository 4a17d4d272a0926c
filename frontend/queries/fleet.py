"""What the fleet page and the overview's map, problems and spare pool show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from jobs.states import WorkerState
from nodes.states import MAY_TAKE_WORK, NodeState
from yoco_platform.core.auth import Viewer

from ..words import Look, node_look
from .spares import Cover, SpareNode, covers
from .visible import jobs_live, migrations_live, nodes_of

if TYPE_CHECKING:
    from jobs.models import Job
    from nodes.models import Finding, Node

WORKS = (WorkerState.ORDERED, WorkerState.STARTING, WorkerState.RUNNING, WorkerState.BLOCKED)
TROUBLE = ("fail", "migrating", "warn", "unknown", "drain")
"""Groups of the problem list, worst first."""


LEGEND = (
    ("ok", "Healthy"),
    ("spare", "Spare"),
    ("migrating", "Migrating"),
    ("warn", "Degraded"),
    ("fail", "Failed"),
    ("drain", "Out of service"),
    ("unknown", "No data"),
)


@dataclass
class NodeRow:
    """One node of the fleet with what stands on it. ``ranks``: job id -> (job, its ranks here)."""

    node: Node
    look: Look
    findings: list[Finding]
    num_gpus: int
    simulated: bool
    ranks: dict[int, tuple[Job, list[int]]] = field(default_factory=dict)
    standbys: list[Job] = field(default_factory=list)
    reason: str = ""
    incident_id: int | None = None
    moving_since: datetime | None = None

    @property
    def since(self) -> datetime:
        return self.moving_since or self.node.state_since

    @property
    def in_use(self) -> bool:
        return bool(self.ranks)

    @property
    def num_ranks(self) -> int:
        return sum(len(ranks) for _, ranks in self.ranks.values())

    @property
    def cell_states(self) -> list[str]:
        return [self.look.shape] * self.num_gpus


@dataclass(frozen=True)
class Fleet:
    rows: list[NodeRow]
    covers: list[Cover]
    gpus: Counter[str]
    """GPUs by shape; they add up to ``num_gpus``."""
    as_of: datetime | None

    @property
    def num_gpus(self) -> int:
        return sum(self.gpus.values())

    @property
    def num_simulated(self) -> int:
        return sum(row.num_gpus for row in self.rows if row.simulated)

    @property
    def healthy_gpus(self) -> int:
        return self.gpus["ok"] + self.gpus["spare"]

    @property
    def trouble(self) -> list[NodeRow]:
        return [row for row in self.rows if row.look.shape not in ("ok", "spare")]

    @property
    def by_rack(self) -> list[tuple[str, list[NodeRow]]]:
        racks: dict[str, list[NodeRow]] = {}
        for row in self.rows:
            racks.setdefault(row.node.rack, []).append(row)
        return sorted(racks.items())

    @property
    def problem_groups(self) -> list[tuple[Look, int, list[NodeRow]]]:
        """(look of the group, its GPUs, its nodes), worst first; empty groups are left out."""
        words = dict(LEGEND)
        groups: list[tuple[Look, int, list[NodeRow]]] = []
        for shape in TROUBLE:
            rows = [row for row in self.rows if row.look.shape == shape]
            if rows:
                look = Look(shape, words[shape])
                groups.append((look, sum(row.num_gpus for row in rows), rows))
        return groups

    @property
    def named(self) -> bool:
        """Few enough nodes to write their names into the map."""
        return len(self.rows) <= 48

    @property
    def pitch(self) -> int:
        """Pixels from one cell of the map to the next."""
        return 16 if self.named else 10 if self.num_gpus <= 2048 else 6

    @property
    def legend(self) -> list[tuple[str, str, int]]:
        """(shape, word, GPUs) of every state that occurs; the counts add up to ``num_gpus``."""
        return [(name, word, self.gpus[name]) for name, word in LEGEND if self.gpus[name]]

    @property
    def shows_demo(self) -> bool:
        """Whether any job that stands on these nodes belongs to a demonstration."""
        return any(
            job.is_demo
            for row in self.rows
            for job in [*row.standbys, *(job for job, _ in row.ranks.values())]
        )

    @property
    def root_nodes(self) -> list[str]:
        return [row.node.name for row in self.rows if row.node.runs_as_root]

    @property
    def spares_ready(self) -> int:
        return sum(cover.ready for cover in self.covers)

    @property
    def losses(self) -> int:
        """Simultaneous losses that the weakest pool with work on it can take."""
        busy = {row.node.pool for row in self.rows if row.in_use}
        return min((cover.losses for cover in self.covers if cover.pool in busy), default=0)


def fleet(viewer: Viewer) -> Fleet:
    """Every visible node with its state, trouble, ranks and the cover of its pool."""
    nodes = nodes_of(viewer)
    moving = _moving(viewer)
    rows: dict[int, NodeRow] = {}
    for node in nodes:
        gpus = list(node.gpus.all())
        rows[node.pk] = NodeRow(
            node=node,
            look=node_look(node.state, moving=node.pk in moving),
            findings=node.findings_open,  # type: ignore[attr-defined]
            num_gpus=len(gpus),
            simulated=any(gpu.simulated for gpu in gpus),
            incident_id=moving[node.pk][0] if node.pk in moving else None,
            moving_since=moving[node.pk][1] if node.pk in moving else None,
        )
    _place_workers(viewer, rows)
    for row in rows.values():
        row.reason = _reason(row)
        if row.look.shape == "ok" and not row.in_use and row.node.is_spare:
            row.look = node_look(row.node.state, spare=True)
    shapes: Counter[str] = Counter()
    for row in rows.values():
        shapes[row.look.shape] += row.num_gpus
    heard = [node.last_heard_at for node in nodes if node.last_heard_at]
    return Fleet(list(rows.values()), _covers(rows), shapes, max(heard, default=None))


def _reason(row: NodeRow) -> str:
    """Why the node is not simply ready: its worst finding, else the reason of its last step."""
    if row.findings and row.findings[0].evidence:
        return str(row.findings[0].evidence[0])
    if row.node.state == NodeState.READY:
        return ""
    step = row.node.transitions.order_by("-at", "-id").first()
    return step.reason if step else ""


def _moving(viewer: Viewer) -> dict[int, tuple[int | None, datetime]]:
    """Nodes that are source or target of a move now -> (its incident, since when)."""
    moving: dict[int, tuple[int | None, datetime]] = {}
    for migration in migrations_live(viewer):
        why = (migration.incident_id, migration.created_at)
        for move in migration.moves.all():
            moving[move.from_node_id] = moving[move.to_node_id] = why
    return moving


def _place_workers(viewer: Viewer, rows: dict[int, NodeRow]) -> None:
    for job in jobs_live(viewer).prefetch_related("workers"):
        for worker in sorted(job.workers.all(), key=lambda worker: worker.rank or 0):
            row = rows.get(worker.node_id)
            if row is None:
                continue
            if worker.rank is None and worker.state == WorkerState.STANDBY:
                row.standbys.append(job)
            elif worker.rank is not None and worker.state in WORKS:
                row.ranks.setdefault(job.pk, (job, []))[1].append(worker.rank)


def _covers(rows: dict[int, NodeRow]) -> list[Cover]:
    spares = [
        SpareNode(row.node.pool, row.num_gpus - row.num_ranks, bool(row.standbys))
        for row in rows.values()
        if row.node.is_spare
        and row.node.state in MAY_TAKE_WORK
        and row.num_gpus > row.num_ranks
        and not row.in_use
    ]
    used = [(row.node.pool, row.num_ranks) for row in rows.values() if row.in_use]
    return covers(spares, used)
