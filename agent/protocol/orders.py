"""Orders: what the platform asks of one agent."""

from __future__ import annotations

from typing import Literal

from .base import Envelope, Message
from .machines import Endpoint


class StoreRef(Message, frozen=True, kw_only=True):
    """The key-value store a generation meets in. ``prefix`` carries the attempt's random id.

    ``secret`` opens the store; it is known only from orders.
    """

    host: str
    port: int
    prefix: str
    secret: str


class WorkerSpec(Message, frozen=True, kw_only=True):
    """One process to start. ``rank`` None makes it a standby, set up as ``provisional_rank``."""

    worker_id: str
    rank: int | None
    provisional_rank: int
    gpu_index: int = 0


class Limits(Message, frozen=True, kw_only=True):
    """Time-outs of a job, ordered: stall < collective < blocked. All in seconds.

    ``stall_s`` is when a rank begins to count as standing still. How long it may do so while others wait for
    it depends on its phase: ``compute_s`` from a batch to the end of the optimizer's step, ``frozen_s`` there
    if its process does not run at all (stopped, or native code keeps the GIL), ``data_s`` waiting for a
    batch, ``tail_s`` after the optimizer's step, ``evaluating_s``, ``saving_s``, ``compiling_s``. All ranks
    inside the same collective for ``network_s`` means the network.
    """

    stall_s: float = 3.0
    collective_s: float = 60.0
    blocked_s: float = 1800.0
    join_s: float = 300.0
    compute_s: float = 30.0
    frozen_s: float = 8.0
    data_s: float = 30.0
    tail_s: float = 60.0
    evaluating_s: float = 900.0
    saving_s: float = 900.0
    compiling_s: float = 900.0
    network_s: float = 20.0

    def of_phase(self, phase: str, step: int, *, frozen: bool = False) -> float | None:
        """How long a rank may stand still in ``phase``; None where standing still is no sign of a hang.

        A process that has not made its first step may take as long as joining may: libraries are loaded,
        kernels chosen, memory is found.
        """
        compute_s = min(self.frozen_s, self.compute_s) if frozen else self.compute_s
        phases = {
            "data": self.data_s,
            "forward": compute_s,
            "vote": compute_s,
            "apply": compute_s,
            "tail": self.tail_s,
            "evaluating": self.evaluating_s,
            "saving": self.saving_s,
            "compiling": self.compiling_s,
        }
        limit_s = phases.get(phase)
        if limit_s is None:
            return None
        return max(limit_s, self.stall_s, self.join_s if step < 1 else 0.0)


class LaunchOrder(Message, tag="launch", frozen=True, kw_only=True):
    """Start these workers of one generation. A worker that already runs is left alone."""

    job_id: str
    attempt: int
    generation: int
    world_size: int
    command: list[str]
    environment: dict[str, str]
    working_directory: str
    run_as: str
    workers: list[WorkerSpec]
    store: StoreRef
    redundancy: Literal["auto", "replica", "shadow", "buddy"]
    accumulation: Literal["redo", "keep"] = "redo"
    buddies: dict[str, str]
    """rank (decimal) -> rank whose agent keeps a copy of its private state, under ``buddy`` of all of it."""
    limits: Limits


class PauseOrder(Message, tag="pause", frozen=True, kw_only=True):
    """Ask the ranks here to agree on a fence and stop there (a planned move)."""

    job_id: str
    attempt: int
    generation: int
    migration_id: str


class InterruptOrder(Message, tag="interrupt", frozen=True, kw_only=True):
    """The generation is over: abort its process groups, keep everything, report ``rank_blocked``."""

    job_id: str
    attempt: int
    generation: int


class Survive(Message, tag="survive", frozen=True, kw_only=True):
    """The rank stays where it is and joins the new generation."""

    rank: int


class Serve(Message, tag="serve", frozen=True, kw_only=True):
    """Serve a rank's state to one target once it stands at ``RegroupOrder.resume_at``.

    ``what`` shared: storages and small tensors; private: fence and prepared slots; all: both.
    ``holder`` says which arena: this rank's live worker, the custody of a dead one, or the copy kept
    here as a buddy (all of it only where the redundancy is ``buddy``). The stream opens for
    ``stream_secret`` only, once. ``target_node`` is a node's id.
    ``rank`` is always the rank that moves, equal to ``Adopt.rank`` of the target; ``source_rank`` is the
    rank here that holds the copy (replica, buddy), None when it is ``rank`` itself.
    """

    rank: int
    source_rank: int | None = None
    finish_micro: int = 0
    """as ``Adopt.finish_micro`` of the target"""
    holder: Literal["live", "custody", "replica", "shadow", "buddy"]
    what: Literal["shared", "private", "all"]
    stream_id: str
    stream_secret: str
    target_node: str


class Fetch(Message, frozen=True, kw_only=True):
    """One stream a target opens. ``node``/``endpoint`` are the source's; ``holder`` as in its Serve."""

    node: str
    holder: str = ""
    endpoint: Endpoint
    what: Literal["shared", "private", "all"]
    stream_id: str
    stream_secret: str


class Adopt(Message, tag="adopt", frozen=True, kw_only=True):
    """The standby ``worker_id`` becomes ``rank``.

    ``finish`` says what is left of step ``resume_at`` (docs/engine.md, "Finishing a torn step"):
    none: the state fetched is fence(resume_at);
    tail: shared state is at resume_at, private is fence(resume_at - 1) + prepared(resume_at);
    apply: shared state is at resume_at - 1 and prepared(resume_at) carries the gradients.
    """

    worker_id: str
    rank: int
    finish: Literal["none", "tail", "apply"]
    fetches: list[Fetch]
    drawn: int | None = None
    """batches of step ``resume_at`` + 1 that the lost process had drawn; None: nobody knows."""
    drawn_hash: str = ""
    finish_micro: int = 0
    """micro-batch of step ``resume_at`` that its source has kept and that step is finished from; 0: fence."""


class Retire(Message, tag="retire", frozen=True, kw_only=True):
    """The rank has moved away: end its worker and let its arena go, after the first commit."""

    rank: int
    worker_id: str


class RegroupOrder(Message, tag="regroup", frozen=True, kw_only=True):
    """Everything one agent does in one migration. Idempotent; late ones change nothing.

    ``resume_at`` is the last committed step c: ranks that stand before it apply what they kept, ranks
    beyond it discard, and generation ``generation`` goes on with step c + 1.
    """

    job_id: str
    attempt: int
    from_generation: int
    generation: int
    migration_id: str
    resume_at: int
    resume_micro: int = 0
    """micro-batch of step ``resume_at`` + 1 after which all ranks go on, having kept it; 0: the fence."""
    store: StoreRef
    buddies: dict[str, str]
    roles: list[Survive | Serve | Adopt | Retire]


class ReleaseOrder(Message, tag="release", frozen=True, kw_only=True):
    """The new generation has committed: let go of what is kept, in memory or parked, of these ranks from
    before ``generation``."""

    job_id: str
    attempt: int
    generation: int
    ranks: list[int]


class EndHungOrder(Message, tag="end_hung", frozen=True, kw_only=True):
    """Others wait for this rank and it does not move: record its stacks, end it, keep its state.

    Answered with ``rank_moved`` and nothing done when it has moved since: it must have stood still for
    ``still_s`` at the least.
    """

    job_id: str
    attempt: int
    generation: int
    worker_id: str
    still_s: float
    reason: str


class ParkOrder(Message, tag="park", frozen=True, kw_only=True):
    """Write the state of these ranks, which stand paused at fence ``step``, to disk (docs/agent.md).

    Nothing is ended by it: whoever cannot write says so, and all go on. ``store``: that of the generation;
    its agent keeps what standbys are set up with, so that the job can come back after a restart.
    """

    job_id: str
    attempt: int
    generation: int
    step: int
    ranks: list[int]
    store: StoreRef


class StopOrder(Message, tag="stop", frozen=True, kw_only=True):
    """End workers of a job. Empty ``worker_ids`` means all of them here.

    ``keep_state``: of ranks, what is in custody stays there until a release.
    """

    job_id: str
    attempt: int
    worker_ids: list[str]
    reason: str
    keep_state: bool = False


OrderBody = (
    LaunchOrder
    | PauseOrder
    | InterruptOrder
    | RegroupOrder
    | ReleaseOrder
    | EndHungOrder
    | ParkOrder
    | StopOrder
)


class Order(Message, frozen=True, kw_only=True):
    """An order in an agent's hands. ``deadline`` is platform time; an agent judges it by ``expires_in_s``."""

    order_id: str
    expires_in_s: float
    body: OrderBody


class OrderResult(Envelope, frozen=True, kw_only=True):
    """How an order ended. ``code`` is set when it did not: see agent/errors.py for the codes."""

    order_id: str
    ok: bool
    code: str = ""
    message: str = ""


class Empty(Envelope, frozen=True, kw_only=True):
    """A reply that only says: taken."""
