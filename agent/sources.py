"""The source's side of a move: which worker's memory answers a Serve, and what of it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from .custody import Custody, close_all
from .errors import SourceMissing
from .parked_files import Parked
from .protocol import RegroupOrder, Serve
from .transfer.arena import Header, micro_key
from .transfer.manifest import Manifest
from .transfer.state import BlobName, SourceState
from .workers import Worker, Workers

_LOOK_S = 0.002
Blobs = dict[BlobName, tuple[int, bytes]]


def holder_of(workers: Workers, order: RegroupOrder, role: Serve) -> Worker:
    """The worker whose memory holds what ``role`` asks for. Raises SourceMissing.

    A dead or paused worker of an earlier generation counts too: it is kept until it is released.
    """
    here = [
        w
        for w in workers
        if (w.record.job_id, w.record.attempt) == (order.job_id, order.attempt)
        and w.record.rank is not None
        and w.record.generation < order.generation + (role.holder in ("replica", "buddy"))
    ]
    here.sort(key=lambda w: w.record.generation, reverse=True)
    found = next((w for w in here if _holds(w, role, order.resume_at)), None)
    if found is None and role.holder == "replica" and role.source_rank is None:
        # A rank that was adopted here has not said whom it equals; the planner knows it by its rank.
        alive = [w for w in here if w.alive and not w.record.retiring]
        found = alive[0] if len(alive) == 1 and not alive[0].record.replica_group else None
    if found is None:
        raise SourceMissing(f"no {role.holder} of rank {role.rank} is kept on this node")
    return found


def _holds(worker: Worker, role: Serve, step: int) -> bool:
    record = worker.record
    match role.holder:
        case "live":
            return worker.alive and record.rank == role.rank
        case "custody":
            return not worker.alive and record.rank == role.rank
        case "shadow":
            return record.rank == role.rank and _mirrors(worker, (step, step - 1))
        case "replica":
            if role.source_rank is not None:
                return worker.alive and record.rank == role.source_rank
            # Never a guess: another rank's shard may have the very same shapes.
            return worker.alive and role.rank in record.replica_group
        case "buddy":
            if role.what == "all":
                return _kept_whole(worker.custody, role.rank, step) is not None
            steps = (step + 1, step)
            return any(worker.custody.blob("buddy", each, role.rank) is not None for each in steps)


def _mirrors(worker: Worker, steps: tuple[int, ...]) -> bool:
    """Whether its shadow is whole, at one of ``steps``."""
    header = worker.custody.header
    whole = header is not None and header.get("shadow") in steps
    return whole and worker.custody.arena("shadow") is not None


async def at_rest(worker: Worker, role: Serve, step: int, timeout_s: float) -> None:
    """Return when the memory that ``role`` names stands still at a step it may be given at.

    Raises SourceMissing when it does not within ``timeout_s``. A worker's header is shared memory and
    nothing tells when it changes, so it is looked at.
    """
    if role.holder in ("shadow", "buddy"):
        return
    if role.what == "private" and not worker.alive:
        return  # slots only, and no arena: one that was torn by its death is another holder's to give
    wanted = (step,) if role.holder == "replica" else (step, step - 1)
    try:
        async with asyncio.timeout(timeout_s):
            while not _stands(worker, role, wanted):
                header = worker.custody.header
                past = header is not None and header.get("applying") > step
                if past or not worker.alive:  # neither goes back, and what a dead one left stays
                    raise SourceMissing(
                        f"the {role.holder} of rank {role.rank} is not whole at step {step}"
                    )
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        raise SourceMissing(
            f"the {role.holder} of rank {role.rank} does not stand at step {step}"
        ) from error


def _stands(worker: Worker, role: Serve, wanted: tuple[int, ...]) -> bool:
    header = worker.custody.header
    if header is None or not header.usable:
        return False
    if role.holder == "live" and worker.blocked is None:
        return False
    return header.get("applying") == header.get("applied") and header.get("applied") in wanted


def state_of(custody: Custody, role: Serve, step: int, micro: int = 0) -> SourceState:
    """What goes to the target; ``micro`` not 0: also what was kept after that micro-batch
    of the next step.

    Descriptors are duplicates, closed by ``release``. Raises SourceMissing unless everything that
    ``role.what`` promises is whole.
    """
    header = custody.header
    if header is None:
        raise SourceMissing(f"nothing of rank {role.rank} is held here")
    if role.holder == "buddy" and role.what == "all":
        return _whole_copy(custody, role, step)
    blobs: Blobs = {}
    if role.what != "shared":
        blobs |= _private(custody, header, role, step)
        if micro:
            blobs |= _micro(custody, role, step + 1, micro)
        elif role.finish_micro:
            blobs |= _micro(custody, role, step, role.finish_micro)
    manifest, storages = Manifest(), dict[int, int]()
    if role.what != "private":
        which, at = _arena(header, role)
        arena = custody.arena("shadow" if which == "shadow" else "live")
        small = custody.blob("small", at)
        if arena is None or small is None:
            raise SourceMissing(f"the {which} arena of rank {role.rank} is not whole at step {at}")
        blobs["small"] = (at, small.data)
        manifest, storages = arena.manifest, arena.duplicate()
    return SourceState(
        manifest=manifest,
        storages=storages,
        blobs=blobs,
        takeable=role.holder == "custody",
        release=lambda: close_all(_emptied(storages)),
    )


def _kept_whole(custody: Custody, rank: int, step: int) -> tuple[int, int] | None:
    """(step of the arena, step of the private copy) that together make ``step``, as the planner chooses."""
    for arena_step, copy_step in ((step, step + 1), (step, step), (step - 1, step)):
        whole = custody.kept_shard(rank, arena_step) is not None
        if whole and custody.buddy_copy(rank, copy_step) is not None:
            return arena_step, copy_step
    return None


def _whole_copy(custody: Custody, role: Serve, step: int) -> SourceState:
    """Everything of a rank whose node may be gone, as its buddy keeps it."""
    steps = _kept_whole(custody, role.rank, step)
    shard = None if steps is None else custody.kept_shard(role.rank, steps[0])
    copy = None if steps is None else custody.buddy_copy(role.rank, steps[1])
    if steps is None or shard is None or copy is None:
        raise SourceMissing(f"no whole copy of rank {role.rank} at step {step} is kept here")
    arena, small = shard
    blobs: Blobs = {"small": (steps[0], small), "fence": (steps[1] - 1, copy[0])}
    if steps[1] == step:
        blobs["prepared"] = (step, copy[1])
    storages = arena.duplicate()
    return SourceState(
        manifest=arena.manifest,
        storages=storages,
        blobs=blobs,
        takeable=False,
        release=lambda: close_all(_emptied(storages)),
    )


def parked_state(parked: Parked, role: Serve, step: int, micro: int) -> SourceState:
    """What goes to the target of a rank that lies on disk, read and digested anew for each stream.

    Raises SourceMissing: a byte differs, or it does not stand at ``step``.
    """
    custody = parked.restored(with_arena=role.what != "private")
    try:
        return state_of(custody, role, step, micro)  # descriptors of its own, and copies
    finally:
        custody.close()


def _emptied(storages: Mapping[int, int]) -> list[int]:
    """All descriptors, once."""
    assert isinstance(storages, dict)
    fds = list(storages.values())
    storages.clear()
    return fds


def _arena(header: Header, role: Serve) -> tuple[str, int]:
    """Which arena, and the step its storages are at."""
    if role.holder == "shadow":
        return "shadow", header.get("shadow")
    if not header.usable or header.get("applying") != header.get("applied"):
        raise SourceMissing(f"the arena of rank {role.rank} is torn")
    return "live", header.get("applied")


def _micro(custody: Custody, role: Serve, step: int, micro: int) -> Blobs:
    key = micro_key(step, micro)
    kept = custody.blob("micro", key, role.rank)
    if kept is None or role.holder == "buddy":
        raise SourceMissing(
            f"micro-batch {micro} of step {step} of rank {role.rank} is not kept here"
        )
    return {"micro": (key, kept.data)}


def _private(custody: Custody, header: Header, role: Serve, step: int) -> Blobs:
    """Fence and prepared, as the planner counts on them: fence(step) alone where there is one, else
    fence(step - 1) and prepared(step)."""
    if role.holder == "buddy":
        later, now = (custody.buddy_copy(role.rank, each) for each in (step + 1, step))
        if later is not None:
            return {"fence": (step, later[0])}
        if now is not None:
            return {"fence": (step - 1, now[0]), "prepared": (step, now[1])}
        raise SourceMissing(f"no copy of rank {role.rank} at step {step} is kept here")
    if header.get("fence") == step:
        fence = custody.blob("fence", step)
        if fence is not None:
            return {"fence": (step, fence.data)}
    fence, prepared = custody.blob("fence", step - 1), custody.blob("prepared", step)
    if fence is None or prepared is None:
        raise SourceMissing(f"the private state of rank {role.rank} does not complete step {step}")
    return {"fence": (step - 1, fence.data), "prepared": (step, prepared.data)}
