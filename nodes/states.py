"""The states a node can be in, and the only steps between them."""

from __future__ import annotations

from django.db.models import TextChoices


class NodeState(TextChoices):
    JOINING = "joining"
    TESTING = "testing"
    READY = "ready"
    SUSPECT = "suspect"
    CORDONED = "cordoned"
    DRAINING = "draining"
    QUARANTINED = "quarantined"
    REPAIRING = "repairing"
    PROBATION = "probation"
    LOST = "lost"
    RETIRED = "retired"


S = NodeState

STEPS: dict[NodeState, frozenset[NodeState]] = {
    S.JOINING: frozenset({S.TESTING, S.LOST, S.CORDONED, S.RETIRED}),
    S.TESTING: frozenset(
        {S.READY, S.PROBATION, S.QUARANTINED, S.LOST, S.CORDONED, S.DRAINING, S.RETIRED}
    ),
    S.READY: frozenset({S.SUSPECT, S.CORDONED, S.DRAINING, S.QUARANTINED, S.LOST, S.TESTING}),
    S.SUSPECT: frozenset(
        {S.READY, S.CORDONED, S.DRAINING, S.QUARANTINED, S.LOST, S.TESTING, S.PROBATION}
    ),
    S.CORDONED: frozenset({S.READY, S.TESTING, S.DRAINING, S.QUARANTINED, S.LOST, S.RETIRED}),
    S.DRAINING: frozenset({S.READY, S.CORDONED, S.TESTING, S.QUARANTINED, S.REPAIRING, S.LOST}),
    S.QUARANTINED: frozenset({S.REPAIRING, S.TESTING, S.READY, S.LOST, S.RETIRED}),
    S.REPAIRING: frozenset({S.TESTING, S.QUARANTINED, S.LOST, S.RETIRED}),
    S.PROBATION: frozenset({S.READY, S.SUSPECT, S.CORDONED, S.DRAINING, S.QUARANTINED, S.LOST}),
    S.LOST: frozenset({S.JOINING, S.TESTING, S.RETIRED, S.QUARANTINED}),
    S.RETIRED: frozenset(),
}

FINAL = frozenset(state for state, after in STEPS.items() if not after)
MAY_TAKE_WORK = frozenset({S.READY, S.PROBATION})
"""States in which a new rank or standby may be put on the node."""
HEARD = frozenset(NodeState) - {S.LOST, S.RETIRED}
"""States in which silence means something."""

RELEASABLE = frozenset({S.TESTING, S.SUSPECT, S.CORDONED, S.DRAINING, S.QUARANTINED, S.PROBATION})
"""States that a person's release ends at once."""
SILENCE = "silence"
"""``Node.suspect_rule`` of a node that is suspect for its silence alone: nothing is moved for that."""
