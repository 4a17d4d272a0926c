"""Tables of the training runs: jobs, workers, incidents, migrations, parkings, orders, events."""

from __future__ import annotations

from .core import (
    Generation,
    Incident,
    IncidentTransition,
    Job,
    JobTransition,
    Migration,
    Move,
    Order,
    Placement,
    Stage,
    Worker,
)
from .parkings import Parking
from .reports import AgentEvent, Point, StateDigest

__all__ = [
    "AgentEvent",
    "Generation",
    "Incident",
    "IncidentTransition",
    "Job",
    "JobTransition",
    "Migration",
    "Move",
    "Order",
    "Parking",
    "Placement",
    "Point",
    "Stage",
    "StateDigest",
    "Worker",
]
