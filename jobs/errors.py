"""What the jobs app refuses, each with its own code.

DomainError
 ├─ NotFound 404    JobUnknown, IncidentUnknown, MigrationUnknown, OrderUnknown
 ├─ Conflict 409    StepRefused, JobEnded, OrderEnded, NodeInUse
 ├─ Invalid 422     WorldSizeDoesNotFit
 └─ Unavailable 503 EventsNotTaken
"""

from __future__ import annotations

from yoco_platform.core.errors import Conflict, Invalid, NotFound, Unavailable


class JobUnknown(NotFound):
    """No such job, or not one of yours: the same answer."""

    code = "job_unknown"


class IncidentUnknown(NotFound):
    code = "incident_unknown"


class MigrationUnknown(NotFound):
    code = "migration_unknown"


class OrderUnknown(NotFound):
    """No such order, or one of another node: the same answer."""

    code = "order_unknown"


class NodeInUse(Conflict):
    """A job has a rank, a standby or kept state on the node."""

    code = "node_in_use"


class StepRefused(Conflict):
    """The state does not lead there, or somebody else moved the row first."""

    code = "step_refused"


class JobEnded(Conflict):
    """The job has finished, failed or was cancelled already."""

    code = "job_ended"


class JobNotEnded(Conflict):
    """The job still runs, waits or starts."""

    code = "job_not_ended"


class WorldSizeDoesNotFit(Invalid):
    """The pool has not that many GPU slots, or not that many free ones now."""

    code = "world_size_does_not_fit"


class EventsNotTaken(Unavailable):
    """The database did not answer or gave way to another transaction: nothing of the batch is stored."""

    code = "events_not_taken"


class EventRefused(Exception):
    """An agent's report that must change nothing. ``reason`` is the code stored with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
