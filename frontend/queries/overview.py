"""What the overview says: is anything wrong, and is the promise safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import Count, Sum

from jobs import selectors as job_reads
from jobs.states import INCIDENT_FINAL, JOB_LIVE, JobState, ProtectionState, Verdict
from yoco_platform.core.auth import Viewer

from ..formatting import spelled
from ..words import STAGES, Look, job_look, protection_look
from .fleet import Fleet, fleet
from .visible import incidents_open, jobs_live, migrations_live, sees_fleet

if TYPE_CHECKING:
    from jobs.models import Incident, Job, Migration

JOBS_SHOWN = 5
SPARK_POINTS = 40


@dataclass
class JobRow:
    """One job in a list, with what happened to it so far."""

    job: Job
    look: Look
    protection: Look
    moves: int = 0
    lost_steps: int = 0
    losses: list[float | None] = field(default_factory=list)


@dataclass(frozen=True)
class LiveMigration:
    """A migration under way. ``done`` stages of six have ended; ``stage`` is the running one."""

    migration: Migration
    began_at: datetime
    stage: str
    done: int
    bytes_moved: int
    from_names: str
    to_names: str


@dataclass(frozen=True)
class Today:
    """Since midnight UTC."""

    incidents: int
    covered: int
    live: int
    lost_steps: int
    longest: Incident | None
    last_missed: Incident | None


@dataclass(frozen=True)
class Overview:
    fleet: Fleet | None
    incidents: list[Incident]
    migrations: list[LiveMigration]
    running: int
    at_risk: list[Job]
    today: Today
    sentence: str

    @property
    def risk_words(self) -> str:
        """The first job at risk and why, and how many more there are."""
        first = self.at_risk[0]
        moves = first.state in (JobState.RECOVERING, JobState.UNREACHABLE)
        look = job_look(first.state) if moves else protection_look(first.protection)
        more = f" · {len(self.at_risk) - 1} more" if len(self.at_risk) > 1 else ""
        return f"{first.name}: {look.word.lower()}{more}"


def overview(viewer: Viewer, now: datetime) -> Overview:
    """Everything above the fold."""
    incidents = list(incidents_open(viewer).order_by("id")[:20])
    live = jobs_live(viewer)
    at_risk = [
        job
        for job in live
        if job.state in (JobState.RECOVERING, JobState.UNREACHABLE)
        or (job.state == JobState.RUNNING and job.protection != ProtectionState.PROTECTED)
    ]
    migrations = [live_migration(migration) for migration in migrations_live(viewer)]
    today = _today(viewer, now)
    whole = fleet(viewer) if sees_fleet(viewer) else None
    return Overview(
        fleet=whole,
        incidents=incidents,
        migrations=migrations,
        running=live.filter(state__in=[JobState.RUNNING, JobState.RECOVERING]).count(),
        at_risk=at_risk,
        today=today,
        sentence=sentence(len(incidents), len(migrations), at_risk, today.lost_steps, whole),
    )


def sentence(
    incidents: int, migrations: int, at_risk: list[Job], lost_today: int, whole: Fleet | None
) -> str:
    """The state in words: the worst thing first, then what it has cost."""
    if migrations:
        many = migrations > 1
        first = f"{spelled(migrations)} run{'s are' if many else ' is'} moving to " + (
            "spares" if many else "a spare"
        )
    elif incidents:
        first = f"{spelled(incidents)} incident{'s are' if incidents > 1 else ' is'} open"
    elif at_risk:
        first = f"{spelled(len(at_risk))} job{'s are' if len(at_risk) > 1 else ' is'} not fully protected"
    elif whole is not None and whole.trouble:
        count = len(whole.trouble)
        first = f"Every run is protected; {spelled(count).lower()} node{'s are' if count > 1 else ' is'} out"
    elif whole is not None and not whole.rows:
        first = "No nodes yet"
    else:
        first = "Nothing is wrong"
    if lost_today:
        return f"{first}; {lost_today:,} committed step{'s' if lost_today > 1 else ''} lost today."
    return f"{first}; no committed step has been lost today."


def live_migration(migration: Migration) -> LiveMigration:
    stages = {stage.name: stage for stage in migration.stages.all()}
    done = sum(1 for name in STAGES if name in stages and stages[name].ended_at)
    running = next((name for name in STAGES if name in stages and not stages[name].ended_at), None)
    waiting = next((name for name in STAGES if name not in stages), STAGES[-1])
    moves = list(migration.moves.all())
    began = migration.incident.occurred_at if migration.incident else migration.created_at
    return LiveMigration(
        migration=migration,
        began_at=began,
        stage=str(running or waiting),
        done=done,
        bytes_moved=sum(
            int(stream.get("bytes_moved", 0)) for move in moves for stream in move.transfers
        ),
        from_names=", ".join(dict.fromkeys(move.from_node.name for move in moves)),
        to_names=", ".join(dict.fromkeys(move.to_node.name for move in moves)),
    )


def job_rows(viewer: Viewer, *, limit: int = JOBS_SHOWN) -> list[JobRow]:
    """Live jobs first, largest first, each with a spark of its loss."""
    jobs = sorted(
        job_reads.jobs_visible(viewer).order_by("-id")[:200],
        key=lambda job: (job.state not in JOB_LIVE, -job.world_size, -job.pk),
    )[:limit]
    return rows_of(viewer, jobs)


def rows_of(viewer: Viewer, jobs: list[Job]) -> list[JobRow]:
    """The jobs as rows, in their order."""
    rows = {
        job.pk: JobRow(job, job_look(job.state), protection_look(job.protection)) for job in jobs
    }
    totals = (
        job_reads.incidents_visible(viewer)
        .filter(job_id__in=rows)
        .order_by()
        .values("job_id")
        .annotate(times=Count("id"), lost=Sum("lost_steps"))
    )
    for total in totals:
        rows[total["job_id"]].moves = total["times"]
        rows[total["job_id"]].lost_steps = total["lost"] or 0
    for row in rows.values():
        last = row.job.points.filter(loss__isnull=False).order_by("-step")
        row.losses = list(last.values_list("loss", flat=True)[:SPARK_POINTS])[::-1]
    return list(rows.values())


def _today(viewer: Viewer, now: datetime) -> Today:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    incidents = list(job_reads.incidents_visible(viewer).filter(occurred_at__gte=midnight)[:1000])
    paused = [incident for incident in incidents if incident.pause_ms is not None]
    return Today(
        incidents=len(incidents),
        covered=sum(incident.verdict == Verdict.COVERED for incident in incidents),
        live=sum(incident.state not in INCIDENT_FINAL for incident in incidents),
        lost_steps=sum(incident.lost_steps or 0 for incident in incidents),
        longest=max(paused, key=lambda incident: incident.pause_ms or 0.0, default=None),
        last_missed=job_reads.incidents_visible(viewer).filter(verdict=Verdict.MISSED).first(),
    )
