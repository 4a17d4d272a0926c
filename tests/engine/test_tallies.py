"""What a page shows of collectives: those that nobody waits for are let go once they are over."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agent.protocol import Limits
from agent.training.group import YocoProcessGroup
from agent.training.latch import Latch
from agent.training.membership import Membership
from agent.training.tallies import Tallies
from agent.training.work import LatchedWork, over_or_gone
from agent.transfer.arena import Header

OVER_S = 10.0


@pytest.fixture
def header() -> Iterator[Header]:
    made = Header.create()
    yield made
    made.close()


class Inner:
    def __init__(self, done: bool) -> None:
        self.done = done

    def is_completed(self) -> bool:
        return self.done


def test_only_what_is_under_way_and_in_somebodys_hands_is_pending(header: Header) -> None:
    latch = Latch()
    tally = Tallies(header).of_group("g", [0, 1])

    def issued(done: bool) -> LatchedWork:
        handle = tally.begin()
        work = LatchedWork(latch, Inner(done), [], lambda: tally.end(handle))
        tally.follow(handle, over_or_gone(work))
        return work

    over = [issued(True) for _ in range(100)]
    issued(False)
    held = [issued(False), issued(False)]
    issued(True)
    assert (header.groups()[0].issued, header.groups()[0].pending) == (104, 1)
    assert tally.oldest_pending_s() > 0.0
    assert header.groups()[0].pending == 102
    held[0]._inner.done = True
    assert tally.oldest_pending_s() > 0.0
    assert header.groups()[0].pending == 103
    held.clear()
    assert tally.oldest_pending_s() == 0.0
    assert header.groups()[0].pending == 0
    assert len(over) == 100


def test_collectives_of_gloo_that_nobody_waits_for_do_not_gather(header: Header) -> None:
    membership = Membership(0, 1, Limits(), "127.0.0.1", Tallies(header))
    membership.latch.begin(1)
    options: Any = dist.distributed_c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
    options.group_rank, options.group_size, options.group_id = 0, 1, "g"
    options.global_ranks_in_group, options.timeout = [0], datetime.timedelta(seconds=10)
    group = YocoProcessGroup(options, membership)
    group.connect(dist.HashStore(), membership.device)
    handles = [
        group.allreduce([torch.ones(2)], dist.AllreduceOptions())  # type: ignore[attr-defined]
        for _ in range(50)
    ]
    deadline = time.monotonic() + OVER_S
    while group.oldest_pending_s() > 0.0 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(handles) == header.groups()[1].issued == 50
    assert header.groups()[1].pending == 0
    group.close()
