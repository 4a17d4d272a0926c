"""What to do when a generation is over: frozen values in, a plan or words out. No ORM, no clock.

``commit_rule`` says which step was committed last; ``plan`` finds for every rank that has to move
the first source of the recovery ladder that is complete at that step, and a warm standby to take it,
and says in words what it passed over and why. docs/jobs.md shows the ladder.
"""

from __future__ import annotations

from .planner import plan
from .positions import commit_rule
from .targets import numerics_of, standby_refused
from .values import (
    Failure,
    GiveUp,
    Kept,
    Member,
    MovePlan,
    Place,
    Plan,
    Situation,
    Standby,
    Stream,
    Wait,
)

__all__ = [
    "Failure",
    "GiveUp",
    "Kept",
    "Member",
    "MovePlan",
    "Place",
    "Plan",
    "Situation",
    "Standby",
    "Stream",
    "Wait",
    "commit_rule",
    "numerics_of",
    "plan",
    "standby_refused",
]
