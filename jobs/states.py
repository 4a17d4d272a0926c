"""Every state of the jobs app, and the only steps between them."""

from __future__ import annotations

from django.db.models import TextChoices


class JobState(TextChoices):
    SUBMITTED = "submitted"
    WAITING = "waiting", "waiting for nodes"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    UNREACHABLE = "unreachable"
    PARKED = "parked"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


J = JobState
JOB_STEPS: dict[JobState, frozenset[JobState]] = {
    J.SUBMITTED: frozenset({J.WAITING, J.STARTING, J.CANCELLED, J.FAILED}),
    J.WAITING: frozenset({J.STARTING, J.CANCELLED, J.FAILED}),
    J.STARTING: frozenset({J.RUNNING, J.FINISHED, J.FAILED, J.CANCELLED, J.UNREACHABLE, J.WAITING}),
    J.RUNNING: frozenset(
        {J.RECOVERING, J.UNREACHABLE, J.PARKED, J.FINISHED, J.FAILED, J.CANCELLED}
    ),
    J.RECOVERING: frozenset(
        {J.RUNNING, J.WAITING, J.UNREACHABLE, J.PARKED, J.FINISHED, J.FAILED, J.CANCELLED}
    ),
    J.UNREACHABLE: frozenset({J.RUNNING, J.RECOVERING, J.FAILED, J.CANCELLED}),
    J.PARKED: frozenset({J.STARTING, J.RECOVERING, J.FAILED, J.CANCELLED}),
    J.FINISHED: frozenset(),
    J.FAILED: frozenset(),
    J.CANCELLED: frozenset(),
}
JOB_FINAL = frozenset(state for state, after in JOB_STEPS.items() if not after)
JOB_LIVE = frozenset(JobState) - JOB_FINAL


class WhenFull(TextChoices):
    """What a job does that does not fit: the pool at all, or the free slots of now."""

    REFUSE = "refuse", "refuse unless it fits now"
    QUEUE = "queue", "wait for free slots; refuse what the pool could never hold"
    WAIT = "wait", "wait, even for nodes that have not joined yet"


class ProtectionState(TextChoices):
    """What a job could lose right now."""

    PROTECTED = "protected"
    DEGRADED = "degraded"
    UNPROTECTED = "unprotected"
    NEVER_JOINED = "never_joined", "not protected: script never joined"


class WorkerState(TextChoices):
    ORDERED = "ordered"
    STARTING = "starting"
    STANDBY = "standby", "warm standby"
    REJOINING = "rejoining"
    RUNNING = "running"
    BLOCKED = "blocked"
    NOT_JOINED = "not_joined", "running, not joined"
    LOST = "lost"
    EXITED = "exited"


W = WorkerState
_ENDS = frozenset({W.EXITED, W.LOST})
WORKER_ENDED = _ENDS
WORKER_ALIVE = frozenset(WorkerState) - _ENDS
WORKER_STEPS: dict[WorkerState, frozenset[WorkerState]] = {
    W.ORDERED: frozenset({W.STARTING}) | _ENDS,
    W.STARTING: frozenset({W.STANDBY, W.RUNNING, W.NOT_JOINED, W.BLOCKED}) | _ENDS,
    W.STANDBY: frozenset({W.REJOINING, W.RUNNING}) | _ENDS,
    W.REJOINING: frozenset({W.RUNNING, W.BLOCKED}) | _ENDS,
    W.RUNNING: frozenset({W.BLOCKED}) | _ENDS,
    W.BLOCKED: frozenset({W.REJOINING, W.RUNNING}) | _ENDS,
    W.NOT_JOINED: frozenset({W.RUNNING, W.STANDBY}) | _ENDS,
    W.LOST: frozenset({W.EXITED}),
    W.EXITED: frozenset(),
}


class IncidentState(TextChoices):
    OPEN = "open"
    RECOVERING = "recovering"
    VERIFYING = "verifying"
    RESOLVED = "resolved"
    FAILED = "failed"


I = IncidentState  # noqa: E741
INCIDENT_STEPS: dict[IncidentState, frozenset[IncidentState]] = {
    I.OPEN: frozenset({I.RECOVERING, I.FAILED, I.RESOLVED}),
    I.RECOVERING: frozenset({I.VERIFYING, I.OPEN, I.FAILED, I.RESOLVED}),
    I.VERIFYING: frozenset({I.RESOLVED, I.OPEN, I.FAILED}),
    I.RESOLVED: frozenset(),
    I.FAILED: frozenset(),
}
INCIDENT_FINAL = frozenset(state for state, after in INCIDENT_STEPS.items() if not after)
INCIDENT_OPEN = frozenset(IncidentState) - INCIDENT_FINAL


class MigrationState(TextChoices):
    PAUSING = "pausing", "waiting for an agreed fence"
    MOVING = "moving", "transfer and rejoin"
    VERIFYING = "verifying"
    DONE = "done"
    FAILED = "failed"


M = MigrationState
MIGRATION_STEPS: dict[MigrationState, frozenset[MigrationState]] = {
    M.PAUSING: frozenset({M.MOVING, M.FAILED}),
    M.MOVING: frozenset({M.VERIFYING, M.FAILED}),
    M.VERIFYING: frozenset({M.DONE, M.FAILED}),
    M.DONE: frozenset(),
    M.FAILED: frozenset(),
}


MIGRATION_FINAL = frozenset(state for state, after in MIGRATION_STEPS.items() if not after)
MIGRATION_OPEN = frozenset(MigrationState) - MIGRATION_FINAL


class ParkingState(TextChoices):
    """One time that a job gives its places up, from the wish to its return."""

    WANTED = "wanted", "its places are wanted"
    PAUSING = "pausing", "waiting for an agreed fence"
    WRITING = "writing", "its state is being written"
    PARKED = "parked"
    RESUMING = "resuming"
    RESUMED = "resumed"
    WITHDRAWN = "withdrawn", "not needed any more"
    FAILED = "failed"


P = ParkingState
PARKING_STEPS: dict[ParkingState, frozenset[ParkingState]] = {
    P.WANTED: frozenset({P.PAUSING, P.WITHDRAWN}),
    P.PAUSING: frozenset({P.WRITING, P.WITHDRAWN, P.FAILED}),
    P.WRITING: frozenset({P.PARKED, P.WITHDRAWN, P.FAILED}),
    P.PARKED: frozenset({P.RESUMING, P.WITHDRAWN}),
    P.RESUMING: frozenset({P.RESUMED, P.PARKED, P.WITHDRAWN, P.FAILED}),
    P.RESUMED: frozenset(),
    P.WITHDRAWN: frozenset(),
    P.FAILED: frozenset(),
}
PARKING_FINAL = frozenset(state for state, after in PARKING_STEPS.items() if not after)
PARKING_OPEN = frozenset(ParkingState) - PARKING_FINAL


class StageName(TextChoices):
    """The six stages of a migration, in order."""

    DETECT = "detect"
    DECIDE = "decide"
    RESERVE = "reserve"
    TRANSFER = "transfer"
    REJOIN = "rejoin"
    VERIFY = "verify"


class OrderState(TextChoices):
    PENDING = "pending"
    SENT = "sent"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"


O = OrderState  # noqa: E741
ORDER_STEPS: dict[OrderState, frozenset[OrderState]] = {
    O.PENDING: frozenset({O.SENT, O.EXPIRED, O.DONE, O.FAILED}),
    O.SENT: frozenset({O.DONE, O.FAILED, O.EXPIRED}),
    O.DONE: frozenset(),
    O.FAILED: frozenset(),
    O.EXPIRED: frozenset(),
}


ORDER_OPEN = frozenset(state for state, after in ORDER_STEPS.items() if after)


class CauseClass(TextChoices):
    """What broke. Null on the incident means: no evidence yet, verdict awaiting."""

    DEVICE = "device"
    NODE = "node"
    FABRIC = "fabric"
    DRIVER = "driver"
    OPERATING_SYSTEM = "operating_system"
    USER_CODE = "user_code"


class Verdict(TextChoices):
    AWAITING = "awaiting"
    COVERED = "covered"
    MISSED = "missed"
    AVERTED = "averted"
    EXCLUDED = "excluded"
    UNSUPPORTED = "unsupported"
    MERGED = "merged"


class Source(TextChoices):
    """Where a moved rank's state came from (the recovery ladder)."""

    LIVE = "live"
    CUSTODY = "custody"
    REPLICA = "replica"
    SHADOW = "shadow"
    BUDDY = "buddy"
    CHECKPOINT = "checkpoint"
