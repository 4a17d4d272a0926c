"""The product's own rule, asked by the harness.

What the workers' memory says becomes a Situation for ``jobs.recovery.plan``; what its moves name is taken
by the agent's ``sources`` from the agent's ``Custody``. Nothing here decides. A worker that is lost
(``Coordinator.is_lost``) has gone with its node: nobody hears of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent import sources
from agent.protocol import Position, Serve
from agent.transfer.state import SourceState
from jobs.recovery import Kept, Member, MovePlan, Place, Situation, Standby, Stream

if TYPE_CHECKING:
    from .harness import Coordinator, Worker


def situation_of(job: Coordinator) -> Situation:
    """The generation that is over, as the platform would see it."""
    return Situation(
        members=tuple(_member(job, rank, worker) for rank, worker in sorted(job.ranks.items())),
        standbys=tuple(
            Standby(
                worker_id=worker.worker_id,
                place=place_of(worker),
                warm=worker.warm and not worker.exited,
                fingerprint=worker.fingerprint,
                provisional_rank=worker.provisional_rank,
                reachable=not job.is_lost(worker),
            )
            for worker in job.workers
            if worker.rank is None and not worker.exited
        ),
        resumed_at=max(job.resume_at, 0),
        leaving=frozenset() if job.pausing is None else frozenset({job.pausing}),
    )


def place_of(worker: Worker) -> Place:
    return Place(
        node_id=worker.node, name=f"node-{worker.node}", failure_domain=f"power-{worker.node}"
    )


def _member(job: Coordinator, rank: int, worker: Worker) -> Member:
    lost = job.is_lost(worker)
    if lost:
        condition = "silent"
    elif worker.exited:
        condition = "exited"
    else:
        condition = "blocked" if job.waits(worker) else "running"
    return Member(
        rank=rank,
        worker_id=worker.worker_id,
        place=place_of(worker),
        condition=condition,  # type: ignore[arg-type]
        position=None if lost else _position(worker),
        custody="none" if lost else worker.custody.state,
        replica_group=worker.replica_group,
        kept=tuple(_kept(job, rank, worker)),
        fingerprint=worker.fingerprint,
    )


def _position(worker: Worker) -> Position | None:
    """As the agent says it, with the digest that a paused rank gave."""
    position = worker.custody.position()
    if position is None:
        return None
    return msgspec.structs.replace(position, replica_digest=worker.paused_digest)


def _kept(job: Coordinator, rank: int, current: Worker) -> list[Kept]:
    """What is held of this rank from generations before, newest first."""
    kept: list[Kept] = []
    for worker in reversed(job.holders[rank]):
        position = _position(worker)
        if worker is current or position is None or worker.left_at is None:
            continue
        kept.append(
            Kept(
                worker_id=worker.worker_id,
                place=place_of(worker),
                position=position,
                resume_at=worker.left_at,
                live=not worker.exited,
                reachable=not job.is_lost(worker),
            )
        )
    return kept


def served(job: Coordinator, move: MovePlan, step: int, micro: int) -> list[SourceState] | None:
    """What each stream of ``move`` brings; None while a source has not come to rest yet.

    Raises SourceMissing where an agent would refuse, because the planner was wrong.
    """
    found: list[SourceState] = []
    for stream in move.streams:
        worker, serve = _holder(job, move.rank, stream), _serve(move, stream)
        if not _at_rest(worker, serve, step):
            for state in found:
                state.release()
            return None
        found.append(sources.state_of(worker.custody, serve, step, micro))
    return found


def _serve(move: MovePlan, stream: Stream) -> Serve:
    return Serve(
        rank=move.rank,
        source_rank=None if stream.source_rank == move.rank else stream.source_rank,
        finish_micro=move.finish_micro,
        holder=stream.holder,
        what=stream.what,
        stream_id="",
        stream_secret="",
        target_node="",
    )


def _holder(job: Coordinator, rank: int, stream: Stream) -> Worker:
    """The worker on the stream's node that was ``source_rank``, the latest first."""
    for worker in reversed(job.holders[stream.source_rank]):
        living = not worker.exited
        wanted = {"live": living, "replica": living, "custody": not living}.get(stream.holder, True)
        if worker.node == stream.place.node_id and wanted and worker.custody.header is not None:
            return worker
    raise AssertionError(f"nobody holds what {stream} of rank {rank} names")


def _at_rest(worker: Worker, serve: Serve, step: int) -> bool:
    """As ``sources.at_rest``, without waiting."""
    if serve.holder in ("shadow", "buddy") or (serve.what == "private" and worker.exited):
        return True
    header = worker.custody.header
    assert header is not None and header.get("applying") <= step, f"{serve} is past step {step}"
    wanted = (step,) if serve.holder == "replica" else (step, step - 1)
    return sources._stands(worker, serve, wanted)  # type: ignore[arg-type]
