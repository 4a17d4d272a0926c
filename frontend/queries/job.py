"""What the job page shows: ranks, generations, charts across failovers, and whether progress was lost."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from jobs import selectors as job_reads
from jobs.states import MigrationState, WorkerState
from yoco_platform.core.auth import Viewer

from ..words import Look, worker_look

if TYPE_CHECKING:
    from jobs.models import Generation, Incident, Job, Migration, Move, Point, Worker

GONE = (WorkerState.EXITED, WorkerState.LOST)
LENSES = 2
LENS_S = 20.0


@dataclass(frozen=True)
class RankRow:
    """A rank where it sits now. ``step`` is the last one it is known to have applied."""

    rank: int
    worker: Worker
    look: Look
    step: int | None
    moved: int


@dataclass(frozen=True)
class Pause:
    """A stretch in which no step was committed, from the charts' points around a generation's start."""

    generation: int
    began_at: datetime
    ended_at: datetime
    last_step: int
    next_step: int
    incident: Incident | None

    @property
    def seconds(self) -> float:
        """The measured pause where the incident has one, else the distance of the points."""
        if self.incident is not None and self.incident.pause_ms is not None:
            return self.incident.pause_ms / 1000
        return (self.ended_at - self.began_at).total_seconds()


@dataclass(frozen=True)
class GenerationRow:
    generation: Generation
    first_step: int
    last_step: int
    incident: Incident | None
    migration: Migration | None
    moves: list[Move]

    @property
    def sources(self) -> str:
        return ", ".join(dict.fromkeys(move.source for move in self.moves)) or "\u2013"


def ranks_of(job: Job) -> tuple[list[RankRow], list[Worker]]:
    """(ranks in order, standbys) of the job's present attempt; of a rank its newest worker."""
    workers = job.workers.filter(attempt=job.attempt).select_related("node")
    ranks: dict[int, Worker] = {}
    standbys: list[Worker] = []
    used: dict[int, int] = {}
    for worker in workers.order_by("generation", "state_since"):
        if worker.rank is None:
            if worker.state not in GONE:
                standbys.append(worker)
            continue
        used[worker.rank] = used.get(worker.rank, 0) + 1
        held = ranks.get(worker.rank)
        if held is None or worker.state not in GONE or held.state in GONE:
            ranks[worker.rank] = worker
    rows = [
        RankRow(rank, worker, worker_look(worker.state), step_of(worker, job), used[rank] - 1)
        for rank, worker in sorted(ranks.items())
    ]
    return rows, standbys


def step_of(worker: Worker, job: Job) -> int | None:
    """The committed step of a rank that trains; of any other the last that it said it had applied.

    All ranks of a generation commit a step together. None: nothing was reported.
    """
    if worker.state == WorkerState.RUNNING and job.committed_step > 0:
        return job.committed_step
    applied = (worker.position or {}).get("applied", -1)
    return int(applied) if applied is not None and applied >= 0 else None


def points_of(job: Job) -> list[Point]:
    """The points of the present attempt by step; of a step the newest, each in the generation of its step.

    The last points before a failure may be told after it, by a rank that stands in the next generation.
    """
    newest: dict[int, Point] = {}
    for point in job.points.filter(attempt=job.attempt).order_by("generation", "step"):
        newest[point.step] = point
    points = [newest[step] for step in sorted(newest)]
    begun = list(job.generations.filter(attempt=job.attempt).order_by("number"))
    for point in points:
        of = [generation.number for generation in begun if generation.resume_at < point.step]
        point.generation = max(of, default=point.generation)
    return points


def generation_rows(job: Job) -> list[GenerationRow]:
    """Every generation of the present attempt, newest first, with why it began."""
    generations = list(job.generations.filter(attempt=job.attempt).order_by("number"))
    migrations: dict[int, Migration] = {}
    for migration in (
        job.migrations.filter(attempt=job.attempt, to_generation__isnull=False)
        .exclude(state=MigrationState.FAILED)
        .select_related("incident")
        .prefetch_related("moves__from_node", "moves__to_node")
        .order_by("id")
    ):
        migrations[migration.to_generation or 0] = migration
    rows: list[GenerationRow] = []
    for index, generation in enumerate(generations):
        after = generations[index + 1] if index + 1 < len(generations) else None
        moved = migrations.get(generation.number)
        rows.append(
            GenerationRow(
                generation=generation,
                first_step=generation.resume_at + 1,
                last_step=after.resume_at if after else job.committed_step,
                incident=moved.incident if moved else None,
                migration=moved,
                moves=list(moved.moves.all()) if moved else [],
            )
        )
    return rows[::-1]


def pauses_of(points: list[Point], rows: list[GenerationRow]) -> list[Pause]:
    """One pause for each change of generation that the points show, in order."""
    why = {row.generation.number: row.incident for row in rows}
    pauses: list[Pause] = []
    for before, after in itertools.pairwise(points):
        if after.generation != before.generation:
            pauses.append(
                Pause(
                    generation=after.generation,
                    began_at=before.at,
                    ended_at=after.at,
                    last_step=before.step,
                    next_step=after.step,
                    incident=why.get(after.generation),
                )
            )
    return pauses


def job_incidents(viewer: Viewer, job: Job) -> list[Incident]:
    """Incidents of the job, newest first, with their migrations in order and the moves of each."""
    incidents = job_reads.incidents_visible(viewer).filter(job=job).order_by("-pk")[:50]
    return list(incidents.prefetch_related("migrations__moves"))
