"""The vote: one small MIN all-reduce that says whether every rank may apply the step."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .errors import RanksDiverged
from .membership import Membership


class Outcome(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Ballot:
    """What one rank says. ``collectives`` is a checksum over what it issued in this step, ``copy_bytes``
    the length of what it gave its buddy."""

    step: int
    good: bool
    wants_pause: bool
    collectives: int
    copy_bytes: int = 0


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    pause: bool = False
    copy_bytes: int = 0
    """the longest of all ranks"""


def vote(membership: Membership, ballot: Ballot, timeout_s: float) -> Result:
    """Blocks until every rank has voted or the vote broke. Raises RanksDiverged on every rank alike."""
    side = membership.side
    if membership.latch.error is not None or side is None:
        # Without my yes nothing can have been committed.
        return Result(Outcome.FAILED)
    box = torch.tensor(
        [
            int(ballot.good), int(not ballot.wants_pause), ballot.collectives, -ballot.collectives,
            ballot.step, -ballot.step, -ballot.copy_bytes,
        ],
        dtype=torch.int64,
    )  # fmt: skip
    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MIN
    generation = membership.generation
    try:
        with membership.waiting():
            work = side.gloo.allreduce([box], options)
            if membership.latch.error is not None:
                side.abort()  # ended between the check above and the issue: end this one too
            side.ending.begun(work)
            side.ending.wait(work, timeout_s)
            side.ending.seen(work)
    except RuntimeError as error:
        membership.latch.fail(error, generation)
        return Result(Outcome.UNKNOWN if ballot.good else Outcome.FAILED)
    good, no_pause, low, high, first, last, longest = box.tolist()
    if low != -high or first != -last:
        raise RanksDiverged(
            f"at step {ballot.step} the ranks did not issue the same collectives "
            f"(steps {first} to {-last}): every rank must run the same model and loop"
        )
    return Result(
        Outcome.PASSED if good else Outcome.FAILED, pause=not no_pause, copy_bytes=-longest
    )
