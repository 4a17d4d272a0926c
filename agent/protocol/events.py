"""Events: what an agent tells the platform."""

from __future__ import annotations

from typing import Literal

from .base import Envelope, Message
from .orders import Order


class Position(Message, frozen=True, kw_only=True):
    """Where a rank stands (engine.md §2), read from its header page, which outlives the process.

    fence: last step whose fence state is stored; prepared: step whose prepared state is stored;
    applying: last step whose apply began; applied: last step whose apply ended. fence <= applied <= applying.
    -1 everywhere: no step was ever committed.
    """

    fence: int = -1
    prepared: int = -1
    applying: int = -1
    applied: int = -1
    has_gradients: bool = False
    """prepared carries the gradients (no replica holds this shard)."""
    shadow: int = -1
    """step of a complete shadow copy, -1 without one."""
    trail_head: str = ""
    """head of the rank's trail at ``fence``, "" when the header does not have it. It is read from the page,
    never from the state that is moved, so that it can be compared with what a copy goes on from."""
    replica_digest: str = ""
    """over what replicas must hold alike, computed at ``fence`` by a rank that paused there; "" else."""
    drawn_step: int = -1
    """the step of which ``drawn`` batches had been drawn, the running one included; -1: none was."""
    drawn: int = 0
    drawn_hash: str = ""
    """hash of those batches, "" without a loader."""
    micro: list[tuple[int, int]] = []
    """(step, m): the state after micro-batch m of that step is kept here (accumulation ``keep``)."""
    holds: dict[str, list[int]] = {}
    """as a buddy: rank (decimal) -> the prepared steps whose private state is kept here for it.
    The copy at step s consists of fence(s - 1) and prepared(s)."""
    shards: dict[str, list[int]] = {}
    """under redundancy ``buddy``: rank (decimal) -> the steps whose whole arena is kept here for it. Every
    prepared(s) in ``holds`` carries gradients then."""


class RankEvent(Message, frozen=True, kw_only=True):
    """Base of what happens to one worker of one generation."""

    job_id: str
    attempt: int
    generation: int
    worker_id: str


class WorkerStarted(RankEvent, tag="worker_started", frozen=True, kw_only=True):
    rank: int | None
    pid: int


class NotJoined(RankEvent, tag="not_joined", frozen=True, kw_only=True):
    """The script ran for ``join_s`` without calling yoco.join(): not protected."""

    rank: int | None


class StatePart(Message, frozen=True, kw_only=True):
    """One kind of state that is protected: ``count`` things of ``size_bytes`` on this rank.

    ``sources``: rungs of the ladder it comes back from when the process died; ``survives_node``: when the
    whole node did, empty where only a checkpoint is left.
    """

    kind: str
    names: list[str]
    count: int
    size_bytes: int
    sources: list[str]
    survives_node: list[str]


class StateInventory(Message, frozen=True, kw_only=True):
    """The report at start: what is protected, how large, by which source; what was seen, not recognised.

    ``arena_bytes``: storages shared with the agent; ``small_bytes`` and ``private_bytes``: copied at each
    step and at each fence.
    """

    parallelism: str
    redundancy: str
    accumulation: str
    """``redo`` or ``keep`` as it works here, with the reason where it is not what was asked for"""
    models: list[str]
    parts: list[StatePart]
    arena_bytes: int
    small_bytes: int
    private_bytes: int
    not_recognised: list[str]

    @property
    def total_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class RankJoined(RankEvent, tag="rank_joined", frozen=True, kw_only=True):
    """The script called ``protect()``; ``inventory`` is the report of what is and is not protected."""

    rank: int
    fingerprint: str
    parallelism: str
    redundancy: str
    """replica, shadow or buddy, as the engine found it."""
    replica_group: list[int]
    """ranks that hold the same shard as this one, itself included."""
    inventory: StateInventory


class StateListed(RankEvent, tag="state_listed", frozen=True, kw_only=True):
    """The report of rank 0 again, now that a first step has made its optimizers' state."""

    rank: int
    inventory: StateInventory


class StandbyWarm(RankEvent, tag="standby_warm", frozen=True, kw_only=True):
    provisional_rank: int
    fingerprint: str


class RankBlocked(RankEvent, tag="rank_blocked", frozen=True, kw_only=True):
    """The rank waits and keeps everything.

    paused: at an agreed fence; failed: somebody voted no; unknown: the vote itself broke;
    stalled: a collective takes longer than ``stall_s`` and the rank cannot know why.
    """

    rank: int
    outcome: Literal["paused", "failed", "unknown", "stalled"]
    position: Position
    silent_s: float = 0.0


class RankExited(RankEvent, tag="rank_exited", frozen=True, kw_only=True):
    """``exit_code`` None and ``signal`` set when killed. ``position`` None: nothing usable in custody.

    ``exception`` is the type and the first line of what the script raised and did not catch. ``stood_s`` and
    ``stacks`` tell of a rank that its agent ended because it hung: how long it had not moved, and where.
    """

    rank: int | None
    exit_code: int | None
    signal: int | None
    position: Position | None
    custody: Literal["usable", "unavailable", "none"]
    detail: str = ""
    """Last line of the worker's own output, or the reason it could not be started."""
    exception: str = ""
    stood_s: float = 0.0
    stacks: str = ""


class RankParked(RankEvent, tag="rank_parked", frozen=True, kw_only=True):
    """A rank's whole state at fence ``step`` is on this node's disk; said again when its agent starts.

    ``digest`` is over everything that was written; ``folder`` says where it lies, for people.
    """

    rank: int
    step: int
    digest: str
    bytes_written: int
    folder: str


class Rejoined(RankEvent, tag="rank_rejoined", frozen=True, kw_only=True):
    """The rank stands in the new generation's group."""

    rank: int
    migration_id: str
    began_at: float
    ended_at: float


class Transferred(RankEvent, tag="transferred", frozen=True, kw_only=True):
    """A target holds a rank's state. Equal digests prove the copy."""

    rank: int
    migration_id: str
    source_node: str
    holder: str
    carrier: str
    bytes_moved: int
    source_digest: str
    target_digest: str
    began_at: float
    ended_at: float


class RankCommitted(RankEvent, tag="rank_committed", frozen=True, kw_only=True):
    """First commit of a rank in a generation: the end of a failover, with what proves it.

    ``pause_ms``: last commit before to this one by the rank's monotonic clock; None for a newcomer.
    ``replica_digest``: digest over what replicas must hold alike at this step, "" without replicas.
    """

    rank: int
    migration_id: str
    step: int
    previous_step: int
    pause_ms: float | None
    trail_head: str
    previous_trail_head: str
    trail_marks: dict[str, str] = {}
    """of a newcomer: step (decimal) -> head that its trail, as it came with the copy, had at that step."""
    batch_hash: str
    redone_batch_hash: str
    """hash the torn step's batches had before the failure, "" when none was drawn or nobody knows."""
    redrawn_batch_hash: str = ""
    """hash of as many batches of the step committed now: equal to ``redone_batch_hash``."""
    redone_micro_batches: int | None = None
    """batches begun before the failure and computed again, the running one included; None: not known."""
    replica_digest: str
    at: float


class Points(RankEvent, tag="points", frozen=True, kw_only=True):
    """What charts show. Each point is [step, unix seconds, loss, step_ms]; loss is null where it was no
    finite number."""

    rank: int
    points: list[tuple[int, float, float | None, float]]


class StateDigest(RankEvent, tag="state_digest", frozen=True, kw_only=True):
    """Digest of every parameter, buffer, optimizer tensor, generator and the trail at one fence."""

    rank: int
    step: int
    digest: str
    trail_head: str


class RankCosts(RankEvent, tag="rank_costs", frozen=True, kw_only=True):
    """What protection costs this rank a step, averaged over the steps since the last report.

    ``costs``: ``prepare_ms`` storing what finishes the step, copies awaited, and ``vote_ms``, both on the
    training thread; ``private_bytes`` to the buddy before the vote; ``shadow_bytes``, ``shadow_ms`` a copy
    here, ``buddy_bytes``, ``buddy_ms`` a copy to another node, both beside the training thread;
    ``buddy_wait_ms`` what of the latter the training thread waited for, part of ``prepare_ms``. Under
    accumulation ``keep``, for each micro-batch: ``micro_batch_bytes``, ``micro_batch_store_ms``,
    ``micro_batch_agree_ms``. ``own_ms``: median of what a step took this rank without waiting for others.
    """

    rank: int
    step: int
    costs: dict[str, float]


class Checkpointed(RankEvent, tag="checkpointed", frozen=True, kw_only=True):
    rank: int
    step: int


class CheckpointLoaded(RankEvent, tag="checkpoint_loaded", frozen=True, kw_only=True):
    """The script loaded a checkpoint of its own before its first step: the attempt goes on after ``step``."""

    rank: int
    step: int


class RankFinished(RankEvent, tag="rank_finished", frozen=True, kw_only=True):
    """The training function returned."""

    rank: int
    step: int
    trail_head: str


class MigrationFailed(RankEvent, tag="migration_failed", frozen=True, kw_only=True):
    """A target could not adopt: the planner takes the next source or another target."""

    rank: int
    migration_id: str
    code: str
    message: str


EventBody = (
    WorkerStarted
    | NotJoined
    | RankJoined
    | StateListed
    | StandbyWarm
    | RankBlocked
    | RankExited
    | RankParked
    | Rejoined
    | Transferred
    | RankCommitted
    | Points
    | StateDigest
    | RankCosts
    | Checkpointed
    | CheckpointLoaded
    | RankFinished
    | MigrationFailed
)


class Event(Message, frozen=True, kw_only=True):
    """One thing that happened. (boot_id, sequence) is its identity: a repeat is harmless."""

    sequence: int
    occurred_at: float
    body: EventBody


class EventBatch(Envelope, frozen=True, kw_only=True):
    boot_id: str
    events: list[Event]


class EventsReply(Envelope, frozen=True, kw_only=True):
    """Everything up to ``accepted_to`` is stored; the spool may drop it."""

    accepted_to: int
    orders: list[Order]
    """Orders already waiting, so that a report need not wait for the next doorbell."""
