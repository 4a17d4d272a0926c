"""What the planner is given and what it answers: frozen values, printable, without ORM or clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent.protocol import Position

Condition = Literal["running", "blocked", "exited", "silent"]
Custody = Literal["usable", "unavailable", "none"]
Finish = Literal["none", "tail", "apply"]
Holder = Literal["live", "custody", "replica", "shadow", "buddy"]
What = Literal["shared", "private", "all"]

TRIES_MAX = 3
"""A source that failed this often for one rank in one incident is not asked again."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node as the planner sees it. ``suspect`` says in words why nothing new goes there."""

    node_id: int
    name: str
    failure_domain: str
    suspect: str = ""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A dead or paused worker's state of an earlier generation that its agent has not let go of.

    It stands for one committed step only: ``resume_at`` of the generation that followed it.
    """

    worker_id: str
    place: Place
    position: Position
    resume_at: int
    live: bool
    reachable: bool = True


@dataclass(frozen=True, kw_only=True)
class Member:
    """A rank of the generation that is over.

    ``fingerprint``: the numerics it computed with; "" when it never said.
    """

    rank: int
    worker_id: str
    place: Place
    condition: Condition
    position: Position | None
    custody: Custody = "none"
    replica_group: frozenset[int] = frozenset()
    kept: tuple[Kept, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class Standby:
    """A standby of this job. ``warm`` False: it is still being set up."""

    worker_id: str
    place: Place
    warm: bool
    fingerprint: str
    provisional_rank: int = 0
    reachable: bool = True


@dataclass(frozen=True)
class Failure:
    """A move that failed in this incident. ``nodes``: those that may be why.

    ``proven``: they said so themselves, so the same source may still work from other nodes.
    """

    rank: int
    source: str
    nodes: frozenset[int] = frozenset()
    proven: bool = False


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything the planner may look at.

    ``leaving``: ranks that should move while they live.
    ``began_at``: the step that this attempt went on from, loaded from the script's checkpoint; 0: none was.
    ``resumed_at``: the step that this generation went on from, ``began_at`` for the first of an attempt:
    committed, whatever has become of those who stood there.
    ``failures``: every move that failed in this incident.
    """

    members: tuple[Member, ...]
    standbys: tuple[Standby, ...]
    leaving: frozenset[int] = frozenset()
    began_at: int = 0
    resumed_at: int = 0
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One stream to a target. ``source_rank`` is the rank whose agent serves it."""

    holder: Holder
    what: What
    place: Place
    source_rank: int


@dataclass(frozen=True, kw_only=True)
class MovePlan:
    """``source`` is the rung of the ladder; ``streams`` are what its target fetches."""

    rank: int
    from_worker: str
    from_place: Place
    to_worker: str
    to_place: Place
    source: Holder
    finish: Finish
    streams: tuple[Stream, ...]
    passed_over: tuple[str, ...]
    target_reason: str
    drawn: int | None = None
    """batches of the torn step that the process left behind had drawn; None: nobody knows"""
    drawn_hash: str = ""
    finish_micro: int = 0
    """micro-batch of the committed step that what is left of it is finished from; 0: the fence before"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``stay``: rank -> worker that goes on where it is (also a live source without a target).

    ``resume_micro``: micro-batch of the next step that all have kept and go on after; 0: the fence.
    """

    resume_at: int
    stay: dict[int, str]
    moves: tuple[MovePlan, ...]
    reason: str
    resume_micro: int = 0


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing can be decided yet. ``standbys_missing``: how many more warm standbys would help."""

    code: str
    reason: str
    standbys_missing: int = 0


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """No source is complete and at the committed step: only the checkpoint is left."""

    code: str
    reason: str
    resume_at: int
    passed_over: dict[int, tuple[str, ...]] = field(default_factory=dict)
