"""What the incident page shows. Live and done are one page: what is not known yet is *waiting*."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobs import selectors as job_reads
from jobs.states import INCIDENT_FINAL, MigrationState
from nodes import selectors as node_reads
from yoco_platform.core.auth import Viewer

from ..words import CARRIER_WORDS, LEVEL_OPEN_WORDS, LEVELS, STAGES, Look, incident_look

if TYPE_CHECKING:
    from jobs.models import Incident, Migration, Move, Stage

STAGE_WORDS = {
    "detect": "from the failure until the platform knew",
    "decide": "which source, which target, which step",
    "reserve": "standby and generation",
    "transfer": "state to the target",
    "rejoin": "all ranks in the new generation",
    "verify": "digests and the next step",
}
TYPICAL_OVER = 50
"""Typical times are medians over at most this many finished migrations of the pool."""


@dataclass(frozen=True)
class StreamRow:
    """One state stream of a move, as its target reported it."""

    carrier: str
    holder: str
    source_node: str
    bytes_moved: int
    began_s: float
    ended_s: float
    source_digest: str
    target_digest: str

    @property
    def equal(self) -> bool:
        return bool(self.source_digest) and self.source_digest == self.target_digest


@dataclass(frozen=True)
class MoveRow:
    move: Move
    streams: list[StreamRow]

    @property
    def bytes_moved(self) -> int:
        return sum(stream.bytes_moved for stream in self.streams)

    @property
    def seconds(self) -> float:
        if not self.streams:
            return 0.0
        return max(s.ended_s for s in self.streams) - min(s.began_s for s in self.streams)

    @property
    def carriers(self) -> str:
        return ", ".join(dict.fromkeys(stream.carrier for stream in self.streams)) or "\u2013"


@dataclass(frozen=True)
class StageRow:
    """A stage on the scale of seconds since the onset. ``began_s`` None: not begun yet."""

    name: str
    words: str
    began_s: float | None
    ended_s: float | None
    typical_s: float | None
    seconds: float | None
    streams: list[tuple[int, StreamRow]] = field(default_factory=list)

    @property
    def css(self) -> str:
        if self.began_s is None:
            return "waiting"
        return "" if self.ended_s is not None else "running"


@dataclass(frozen=True)
class LevelRow:
    """A level of evidence by name. ``holds`` None: not known yet, or nothing to compare."""

    name: str
    words: str
    holds: bool | None
    open: bool
    open_word: str = "not needed here"

    @property
    def look(self) -> Look:
        if self.holds is None:
            return Look("unknown", "waiting" if self.open else self.open_word)
        return Look("ok", "yes") if self.holds else Look("fail", "no")


@dataclass(frozen=True)
class CommitRow:
    """First commit of a rank in the new generation, as it was judged."""

    rank: int
    step: int
    previous_step: int
    batch_hash: str
    redone_batch_hash: str
    trail_head: str
    known_trail_step: int | None
    """step at which this trail was compared with a head known before; None when no head was known"""
    replica_digest: str
    pause_ms: float | None
    redrawn_batch_hash: str
    redone_micro_batches: int | None

    @property
    def same_batch(self) -> bool | None:
        """Whether the torn step was computed again with its batch; None when none was drawn."""
        if not self.redone_batch_hash:
            return None
        return self.redone_batch_hash == (self.redrawn_batch_hash or self.batch_hash)


@dataclass(frozen=True)
class IncidentPage:
    incident: Incident
    look: Look
    live: bool
    migration: Migration | None
    earlier: list[Migration]
    stages: list[StageRow]
    moves: list[MoveRow]
    levels: list[LevelRow]
    commits: list[CommitRow]
    elapsed_s: float
    span_s: float
    tick_s: float
    survivors: int
    simulated: bool

    @property
    def running(self) -> StageRow | None:
        return next((stage for stage in self.stages if stage.css == "running"), None)

    @property
    def last_step(self) -> int:
        return last_step(self.incident)

    @property
    def next_step(self) -> int | None:
        return next_step(self.incident)

    @property
    def bytes_moved(self) -> int:
        return sum(move.bytes_moved for move in self.moves)

    @property
    def stacks(self) -> list[dict[str, Any]]:
        """Where ranks hung: rank, node, at (None: not kept), text. Any: JSON from the database."""
        return [
            {**stack, "at": datetime.fromisoformat(stack["at"]) if stack.get("at") else None}
            for stack in self.incident.evidence.get("stacks", [])
        ]

    @property
    def same_batches(self) -> tuple[int, int]:
        """Ranks that drew the torn step's batch again, of those that had drawn one."""
        drawn = [commit.same_batch for commit in self.commits if commit.same_batch is not None]
        return sum(drawn), len(drawn)


def last_step(incident: Incident) -> int:
    """The last step committed before the failure: what the plan found, else what was known at the onset."""
    rolled_back = incident.evidence.get("checkpoint")
    if rolled_back:
        return int(rolled_back["committed_step"])
    planned = [
        m.resume_at for m in incident.migrations.all() if m.resume_at is not None
    ]  # newest first
    return planned[0] if planned else incident.step


def next_step(incident: Incident) -> int | None:
    """The first step that every rank committed afterwards; None while none is known."""
    loaded = loaded_step(incident)
    if loaded is not None:
        return loaded + 1
    steps = [int(commit["step"]) for commit in incident.evidence.get("commits", [])]
    return min(steps, default=None)


def loaded_step(incident: Incident) -> int | None:
    """The step that the job was started again from; None where it did not have to be, or is not known."""
    step: int | None = incident.evidence.get("checkpoint", {}).get("loaded_step")
    return step


def incident_page(viewer: Viewer, incident_id: int, now: datetime) -> IncidentPage:
    """The whole page. Raises IncidentUnknown."""
    incident = job_reads.incident_get(viewer, incident_id)
    live = incident.state not in INCIDENT_FINAL
    migrations = list(
        incident.migrations.prefetch_related(
            "stages", "moves__from_node", "moves__to_node"
        ).order_by("id")
    )
    migration = migrations[-1] if migrations else None
    onset = incident.occurred_at
    names = _names(migration)
    moves = [_move_row(move, onset, names) for move in migration.moves.all()] if migration else []
    stages = _stages(viewer, migration, moves, onset, now)
    ends = [stage.ended_s for stage in stages if stage.ended_s is not None]
    end = incident.resolved_at or now
    elapsed = max((end - onset).total_seconds(), 0.0)
    span = max([elapsed if live else 0.0, *ends, 0.05])
    tick = _tick(span)
    return IncidentPage(
        incident=incident,
        look=incident_look(incident.state, incident.verdict),
        live=live,
        migration=migration,
        earlier=migrations[:-1],
        stages=stages,
        moves=moves,
        levels=levels_of(incident, live),
        commits=[_commit_row(stored) for stored in incident.evidence.get("commits", [])],
        elapsed_s=elapsed,
        span_s=tick * -(-span // tick),
        tick_s=tick,
        survivors=incident.job.world_size - len(moves),
        simulated=incident.job.workers.filter(
            attempt=incident.attempt, node__gpus__simulated=True
        ).exists(),
    )


def _tick(span_s: float) -> float:
    """The grid of the stage table: at most six lines of a round number of seconds."""
    for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600):
        if span_s / tick <= 6:
            return float(tick)
    return span_s / 6


def _names(migration: Migration | None) -> dict[str, str]:
    """Node id, as agents write it, -> name, of every node that took part."""
    if migration is None:
        return {}
    moves = list(migration.moves.all())
    ids = {node_id for move in moves for node_id in [*move.source_node_ids, move.to_node_id]}
    return {str(pk): node.name for pk, node in node_reads.nodes_by_id(ids).items()}


def _move_row(move: Move, onset: datetime, names: dict[str, str]) -> MoveRow:
    zero = onset.timestamp()
    return MoveRow(move, [_stream_row(stream, zero, names) for stream in move.transfers])


def _stream_row(stream: dict[str, Any], zero: float, names: dict[str, str]) -> StreamRow:
    """One agent.protocol.Transferred as stored; Any: it is JSON from the database."""
    carrier = str(stream.get("carrier", ""))
    return StreamRow(
        carrier=CARRIER_WORDS.get(carrier, carrier),
        holder=str(stream.get("holder", "")),
        source_node=names.get(str(stream.get("source_node", "")), "another node"),
        bytes_moved=int(stream.get("bytes_moved", 0)),
        began_s=float(stream.get("began_at", zero)) - zero,
        ended_s=float(stream.get("ended_at", zero)) - zero,
        source_digest=str(stream.get("source_digest", "")),
        target_digest=str(stream.get("target_digest", "")),
    )


def _commit_row(stored: dict[str, Any]) -> CommitRow:
    """One commit of Incident.evidence; Any: it is JSON from the database."""
    pause = stored.get("pause_ms")
    return CommitRow(
        rank=int(stored.get("rank", 0)),
        step=int(stored.get("step", 0)),
        previous_step=int(stored.get("previous_step", 0)),
        batch_hash=str(stored.get("batch_hash", "")),
        redone_batch_hash=str(stored.get("redone_batch_hash", "")),
        trail_head=str(stored.get("previous_trail_head", "")),
        known_trail_step=stored.get("known_trail_step"),
        replica_digest=str(stored.get("replica_digest", "")),
        pause_ms=None if pause is None else float(pause),
        redrawn_batch_hash=str(stored.get("redrawn_batch_hash", "")),
        redone_micro_batches=stored.get("redone_micro_batches"),
    )


def _stages(
    viewer: Viewer,
    migration: Migration | None,
    moves: list[MoveRow],
    onset: datetime,
    now: datetime,
) -> list[StageRow]:
    """All six, begun or not. A stage's seconds are its own; together they tile the time."""
    known: dict[str, Stage] = {}
    typical: dict[str, float] = {}
    if migration is not None:
        known = {stage.name: stage for stage in migration.stages.all()}
        typical = typical_seconds(viewer, migration)
    rows: list[StageRow] = []
    for name in STAGES:
        stage = known.get(name)
        began = (stage.began_at - onset).total_seconds() if stage else None
        ended = (stage.ended_at - onset).total_seconds() if stage and stage.ended_at else None
        until = ended if ended is not None else (now - onset).total_seconds()
        rows.append(
            StageRow(
                name=name.value,
                words=STAGE_WORDS[name.value],
                began_s=began,
                ended_s=ended,
                typical_s=typical.get(name.value),
                seconds=None if began is None else max(until - began, 0.0),
                streams=[(row.move.rank, stream) for row in moves for stream in row.streams]
                if name.value == "transfer"
                else [],
            )
        )
    return rows


def typical_seconds(viewer: Viewer, migration: Migration) -> dict[str, float]:
    """Median seconds of each stage over the last finished migrations seen; empty below three."""
    spans: dict[str, list[float]] = {}
    for other in job_reads.migrations_of(viewer, limit=TYPICAL_OVER):
        if other.state != MigrationState.DONE or other.pk == migration.pk:
            continue
        for stage in other.stages.all():
            if stage.ended_at is not None:
                took = (stage.ended_at - stage.began_at).total_seconds()
                spans.setdefault(stage.name, []).append(took)
    return {
        name: sorted(values)[len(values) // 2] for name, values in spans.items() if len(values) >= 3
    }


def levels_of(incident: Incident, live: bool) -> list[LevelRow]:
    """The levels of evidence as stored, by name. A level nobody has looked at has no answer."""
    rows: list[LevelRow] = []
    for key, name, says in LEVELS:
        stored = incident.evidence.get(key, incident.evidence.get(key.split("_")[0]))
        holds, words = _level(stored)
        if key == "twin_verified" and stored is None:
            continue
        open_word = LEVEL_OPEN_WORDS.get(key, LevelRow.open_word)
        rows.append(LevelRow(name, words or says, holds, live, open_word))
    return rows


def _level(stored: object) -> tuple[bool | None, str]:
    if isinstance(stored, dict):
        holds = stored.get("holds")
        return (holds if isinstance(holds, bool) else None), str(stored.get("words", ""))
    return (stored if isinstance(stored, bool) else None), ""
