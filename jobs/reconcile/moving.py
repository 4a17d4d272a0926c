"""Planned moves: a rank leaves a node that may fail, or that somebody wants empty, while it lives."""

from __future__ import annotations

from nodes import selectors as node_reads

from ..causes import Evidence, cause_of
from ..models import Incident, Worker
from ..recovery import numerics_of, standby_refused
from ..services.incidents import incident_open
from ..services.migrations import migration_pause
from ..states import JobState, ParkingState, WorkerState
from .view import View, standby_of


def move_away(view: View) -> bool:
    """Begin a planned move where one is due and a warm standby waits; True when it began."""
    leaving = view.leaving
    if not leaving or not quiet(view):
        return False
    numerics = numerics_of(member.fingerprint for member in leaving)
    if not any(not standby_refused(standby_of(view, s), numerics) for s in view.standbys):
        return False
    reason = "; ".join(_why(view, member) for member in leaving)
    view.incident = _predicted(view, leaving, reason)
    view.migration = migration_pause(
        job=view.job, incident=view.incident, workers=view.members, reason=reason
    )
    return True


def quiet(view: View) -> bool:
    """Nothing else is going on, and every rank has committed a step under us."""
    return (
        view.job.state == JobState.RUNNING
        and view.job.wants_protection
        and view.job.committed_step > view.began_at
        and view.incident is None
        and view.migration is None
        and (view.parking is None or view.parking.state == ParkingState.WANTED)
        and all(
            m.state == WorkerState.RUNNING and m.finished_step is None and not view.node(m).silent
            for m in view.members
        )
    )


def _why(view: View, member: Worker) -> str:
    node = view.node(member)
    return f"rank {member.rank} leaves {node.name}, which is {node.state}"


def _predicted(view: View, leaving: list[Worker], reason: str) -> Incident | None:
    """A failure that a finding predicts is an incident; emptying a node for its own sake is not.

    A finding that only observes predicts nothing, and may speak of another customer's rank.
    """
    suspect = [member for member in leaving if view.node(member).suspect]
    acting = node_reads.findings_acting({member.node_id for member in suspect})
    findings = [
        (member, finding)
        for member in suspect
        for finding in acting
        if finding.node_id == member.node_id
    ]
    if not findings:
        return None
    _, first = min(findings, key=lambda pair: pair[1].first_seen_at)
    evidence = "; ".join(finding.evidence[-1] for _, finding in findings if finding.evidence)
    return incident_open(
        job=view.job,
        workers=[member for member, _ in findings],
        occurred_at=first.last_seen_at,
        summary=f"{reason}: {evidence}" if evidence else reason,
        cause=cause_of(Evidence(component=first.component)),
        predicted=True,
    )
