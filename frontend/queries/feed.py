"""The event feed: steps of jobs, incidents and nodes in one list, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Prefetch

from jobs import selectors as job_reads
from jobs.states import IncidentState, JobState
from yoco_platform.core.auth import Viewer

from ..words import Look, incident_look, job_look, node_look
from .visible import node_steps, sees_fleet


@dataclass(frozen=True)
class Entry:
    """One line. ``subject`` is the linked name; ``kind`` and ``pk`` say what it links to."""

    at: datetime
    look: Look
    kind: str
    pk: int
    subject: str
    words: str
    is_demo: bool = False


def feed(viewer: Viewer, *, limit: int = 12) -> list[Entry]:
    """The last ``limit`` steps the viewer may see."""
    entries = _incidents(viewer, limit) + _jobs(viewer, limit)
    if sees_fleet(viewer):
        entries += [
            Entry(
                step.at,
                node_look(step.to_state),
                "node",
                step.node_id,
                step.node.name,
                f"{node_look(step.to_state).word.lower()}: {step.reason}",
            )
            for step in node_steps(viewer, limit)
        ]
    return sorted(entries, key=lambda entry: entry.at, reverse=True)[:limit]


def _incidents(viewer: Viewer, limit: int) -> list[Entry]:
    entries: list[Entry] = []
    incidents = job_reads.incidents_visible(viewer).order_by("-state_since")[:limit]
    for incident in incidents.prefetch_related(Prefetch("transitions")):
        number = incident.number
        entries.append(
            Entry(
                incident.observed_at, Look("fail", "Incident"), "incident", incident.pk, number,
                incident.summary, incident.is_demo,
            )
        )  # fmt: skip
        for step in incident.transitions.all():
            if step.to_state == IncidentState.OPEN:
                continue
            look = incident_look(step.to_state, incident.verdict)
            words = f"{look.word.lower()}: {step.reason}" if step.reason else look.word.lower()
            demo = incident.is_demo
            entries.append(Entry(step.at, look, "incident", incident.pk, number, words, demo))
    return entries


def _jobs(viewer: Viewer, limit: int) -> list[Entry]:
    """Steps of jobs, without the pairs that incidents already tell."""
    entries: list[Entry] = []
    jobs = job_reads.jobs_visible(viewer).order_by("-state_since")[:limit]
    for job in jobs.prefetch_related(Prefetch("transitions")):
        for step in job.transitions.all():
            if JobState.RECOVERING in (step.to_state, step.from_state):
                continue
            look = job_look(step.to_state)
            words = f"{look.word.lower()}: {step.reason}"
            entries.append(Entry(step.at, look, "job", job.pk, job.name, words, job.is_demo))
    return entries
