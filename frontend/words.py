"""How every state looks: one of the seven shapes of the design, and a word. Nothing else decides colours."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.states import (
    IncidentState,
    JobState,
    MigrationState,
    ProtectionState,
    Source,
    StageName,
    Verdict,
    WorkerState,
)
from nodes.states import NodeState

SHAPES = ("ok", "spare", "migrating", "warn", "fail", "drain", "unknown")


@dataclass(frozen=True)
class Look:
    """``shape`` is one of SHAPES: it names the icon, the colours and the cells."""

    shape: str
    word: str


OK = Look("ok", "Healthy")
SPARE = Look("spare", "Spare")
MIGRATING = Look("migrating", "Migrating")

_NODES = {
    NodeState.JOINING: Look("unknown", "Joining"),
    NodeState.TESTING: Look("drain", "Testing"),
    NodeState.READY: OK,
    NodeState.SUSPECT: Look("warn", "Suspect"),
    NodeState.CORDONED: Look("drain", "Cordoned"),
    NodeState.DRAINING: Look("drain", "Draining"),
    NodeState.QUARANTINED: Look("fail", "Quarantined"),
    NodeState.REPAIRING: Look("drain", "In repair"),
    NodeState.PROBATION: Look("spare", "Probation"),
    NodeState.LOST: Look("fail", "Lost"),
    NodeState.RETIRED: Look("drain", "Retired"),
}
_JOBS = {
    JobState.SUBMITTED: Look("drain", "Submitted"),
    JobState.WAITING: Look("warn", "Waiting for nodes"),
    JobState.STARTING: Look("spare", "Starting"),
    JobState.RUNNING: Look("ok", "Running"),
    JobState.RECOVERING: Look("migrating", "Migrating"),
    JobState.UNREACHABLE: Look("unknown", "Unreachable"),
    JobState.PARKED: Look("drain", "Parked"),
    JobState.FINISHED: Look("ok", "Finished"),
    JobState.FAILED: Look("fail", "Failed"),
    JobState.CANCELLED: Look("drain", "Cancelled"),
}
_WORKERS = {
    WorkerState.ORDERED: Look("drain", "Ordered"),
    WorkerState.STARTING: Look("spare", "Starting"),
    WorkerState.STANDBY: Look("spare", "Warm standby"),
    WorkerState.RUNNING: Look("ok", "Running"),
    WorkerState.BLOCKED: Look("migrating", "Waiting, keeps everything"),
    WorkerState.NOT_JOINED: Look("warn", "Running, never joined"),
    WorkerState.LOST: Look("fail", "Lost"),
    WorkerState.EXITED: Look("fail", "Exited"),
}
_PROTECTION = {
    ProtectionState.PROTECTED: Look("ok", "Protected"),
    ProtectionState.DEGRADED: Look("warn", "Degraded"),
    ProtectionState.UNPROTECTED: Look("fail", "Not protected"),
    ProtectionState.NEVER_JOINED: Look("fail", "Not protected: script never joined"),
}
_VERDICTS = {
    Verdict.AWAITING: Look("warn", "Awaiting"),
    Verdict.COVERED: Look("ok", "Covered"),
    Verdict.MISSED: Look("fail", "Missed"),
    Verdict.AVERTED: Look("spare", "Averted"),
    Verdict.EXCLUDED: Look("drain", "Excluded"),
    Verdict.UNSUPPORTED: Look("unknown", "Unsupported"),
    Verdict.MERGED: Look("drain", "Merged"),
}
_INCIDENTS = {
    IncidentState.OPEN: Look("fail", "Open"),
    IncidentState.RECOVERING: Look("migrating", "Migrating"),
    IncidentState.VERIFYING: Look("migrating", "Verifying"),
    IncidentState.RESOLVED: Look("ok", "Resolved"),
    IncidentState.FAILED: Look("fail", "Failed"),
}
_MIGRATIONS = {
    MigrationState.PAUSING: Look("migrating", "Pausing"),
    MigrationState.MOVING: Look("migrating", "Moving"),
    MigrationState.VERIFYING: Look("migrating", "Verifying"),
    MigrationState.DONE: Look("ok", "Done"),
    MigrationState.FAILED: Look("fail", "Failed"),
}
STAGES = tuple(StageName)

SOURCE_WORDS = {
    Source.LIVE: "from the paused process",
    Source.CUSTODY: "from its agent's custody",
    Source.REPLICA: "from a replica",
    Source.SHADOW: "from its shadow copy",
    Source.BUDDY: "from its buddy's copy",
    Source.CHECKPOINT: "from the checkpoint",
}
CARRIER_WORDS = {"same_host": "same host, memory handed over", "tcp": "network"}
CAUSE_WORDS = {
    "device": "Device",
    "node": "Node",
    "fabric": "Fabric",
    "driver": "Driver",
    "operating_system": "Operating system",
    "user_code": "User code",
}
LEVELS = (
    ("transfer_verified", "Transfer verified", "source and target digests are equal"),
    (
        "continuity_verified",
        "Continuity verified",
        "the next step follows, batch hashes and trail heads agree",
    ),
    ("replicas_agree", "Replicas agree", "digest over the replicas after the first new commit"),
    ("twin_verified", "Twin verified", "compared with an unbroken run: demo and tests only"),
)
"""Levels of evidence by name, in order: (key in Incident.evidence, name, what it says)."""
LEVEL_OPEN_WORDS = {"continuity_verified": "not compared"}
"""A level that was looked at and has no answer; others of that kind are not needed there."""


def node_look(state: str, *, spare: bool = False, moving: bool = False) -> Look:
    """A node's look. ``spare``: ready and nothing on it; ``moving``: source or target of a migration."""
    if moving and state not in (NodeState.LOST, NodeState.QUARANTINED):
        return MIGRATING
    if state == NodeState.READY and spare:
        return SPARE
    return _NODES[NodeState(state)]


def job_look(state: str) -> Look:
    return _JOBS[JobState(state)]


def worker_look(state: str) -> Look:
    return _WORKERS[WorkerState(state)]


def protection_look(state: str) -> Look:
    return _PROTECTION[ProtectionState(state)]


def verdict_look(verdict: str) -> Look:
    return _VERDICTS[Verdict(verdict)]


def incident_look(state: str, verdict: str) -> Look:
    """While an incident is open its state is shown, afterwards its verdict."""
    if state in (IncidentState.RESOLVED, IncidentState.FAILED):
        return verdict_look(verdict)
    return _INCIDENTS[IncidentState(state)]


def migration_look(state: str) -> Look:
    return _MIGRATIONS[MigrationState(state)]


_STANDINGS = {
    "on_target": Look("ok", "On target"),
    "at_risk": Look("warn", "At risk"),
    "below_target": Look("fail", "Below target"),
    "no_events": Look("unknown", "No qualifying failures yet"),
    "open": Look("warn", "Under review"),
    "blocked": Look("drain", "Blocked"),
    "short": Look("fail", "Short – credit due"),
    "insufficient_data": Look("unknown", "Insufficient data"),
    "met_no_events": Look("ok", "Met, no events"),
    "met": Look("ok", "Met"),
}


def standing_look(standing: str) -> Look:
    """How a contract year stands, by sla.states.Standing."""
    return _STANDINGS[standing]


def severity_look(severity: str) -> Look:
    return {
        "info": Look("drain", "Note"),
        "warning": Look("warn", "Warning"),
        "critical": Look("fail", "Critical"),
    }[severity]
