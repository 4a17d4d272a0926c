"""Whoever waits for gloo in a group that is aborted leaves within a bounded time, also where gloo itself is
told nothing: real groups whose payload is half sent."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agent.training import leaving
from agent.training.errors import GenerationOver
from agent.training.group import InnerGroup, _connected_sockets
from agent.training.latch import Latch
from agent.training.leaving import LEAVE_S, Apart, Ending
from agent.training.work import LatchedWork

from .slow_link import PART_BYTES, received_bytes, slow

GROUP_S = 8 * LEAVE_S
"""until gloo's own time-out ends what is left behind"""
NUMEL = 1 << 22
"""more than the kernel keeps of what was sent"""
ROOT = Path(__file__).resolve().parents[2]


def pair_of(timeout_s: float) -> list[InnerGroup]:
    """Both ranks of a group, with a slow link between them."""
    before, store = _connected_sockets(), dist.HashStore()
    device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(lambda rank: InnerGroup(store, rank, 2, timeout_s, device), range(2)))
    # Both were made at once in one process, so each also saw what the other opened, and closed again.
    ours = {fd: node for fd, node in _connected_sockets().items() if before.get(fd) != node}
    slow(ours)
    for inner in ranks:
        inner.sockets = dict(ours)
    return ranks


def half_way(pair: list[InnerGroup], issue: Callable[[InnerGroup, int], Any]) -> list[Any]:
    """The work of both, once a part of its payload has arrived."""
    fds = dict(pair[0].sockets)
    before = received_bytes(fds)
    works = [issue(inner, rank) for rank, inner in enumerate(pair)]
    for inner, work in zip(pair, works, strict=True):
        if not isinstance(work, Apart):
            inner.ending.begun(work)
    while received_bytes(fds) < before + PART_BYTES:
        time.sleep(0.001)
    return works


@pytest.fixture
def pair() -> Iterator[list[InnerGroup]]:
    ranks = pair_of(GROUP_S)
    yield ranks
    for inner in ranks:
        inner.abort()
        if inner.gloo is not None:
            inner.let_go()


def broadcast(root: int) -> Callable[[InnerGroup, int], Any]:
    def issue(inner: InnerGroup, _rank: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank = root
        return inner.gloo.broadcast([torch.ones(NUMEL)], options)

    return issue


def one_to_one(sender: int) -> Callable[[InnerGroup, int], Any]:
    def issue(inner: InnerGroup, rank: int) -> Any:
        act = inner.gloo.send if rank == sender else inner.gloo.recv
        return Apart(act([torch.ones(NUMEL)], 1 - rank, 0).wait)

    return issue


def all_reduce(inner: InnerGroup, _rank: int) -> Any:
    return inner.gloo.allreduce([torch.ones(NUMEL)], dist.AllreduceOptions())


@pytest.mark.parametrize(
    "issue",
    [broadcast(0), broadcast(1), one_to_one(0), one_to_one(1)],
    ids=["broadcast from", "broadcast to", "send", "receive"],
)
def test_what_gloo_is_never_told_of_is_left(
    pair: list[InnerGroup], issue: Callable[[InnerGroup, int], Any]
) -> None:
    works = half_way(pair, issue)
    pair[0].abort()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="in the middle of this operation"):
        pair[0].ending.wait(works[0])
    assert LEAVE_S <= time.monotonic() - began < GROUP_S / 2
    assert not works[0].is_completed()  # gloo has not ended it, and would not for long


@pytest.mark.parametrize(
    "issue", [broadcast(0), broadcast(1), all_reduce, one_to_one(0), one_to_one(1)]
)
def test_what_is_begun_after_the_end_raises_too(
    pair: list[InnerGroup], issue: Callable[[InnerGroup, int], Any]
) -> None:
    pair[0].abort()
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        pair[0].ending.wait(issue(pair[0], 0))
    assert time.monotonic() - began < GROUP_S / 2


DROPS_AND_ENDS = """
from tests.engine.test_leaving import broadcast, half_way, pair_of
ranks = pair_of(3600.0)
works = half_way(ranks, broadcast(1))
for inner in ranks:
    inner.abort()
    inner.let_go()
assert not works[0].is_completed()
"""


def test_a_process_with_a_group_that_still_waits_drops_it_and_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", DROPS_AND_ENDS], cwd=ROOT, timeout=60)
    assert ended.returncode == 0


def test_a_group_that_was_kept_is_dropped_once_it_has_ended(pair: list[InnerGroup]) -> None:
    works = half_way(pair, broadcast(1))
    for inner in pair:
        inner.abort()
        inner.let_go()
    assert kept(pair[0])
    deadline = time.monotonic() + 2 * GROUP_S
    while not all(work.is_completed() for work in works):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    leaving.let_go(Ending(), [])
    assert not kept(pair[0])


def kept(inner: InnerGroup) -> bool:
    return inner.ending in [ending for ending, _things in leaving._left]


class Slow:
    """Work of gloo that is done when it is waited for the fourth time."""

    def __init__(self) -> None:
        self.turns = 0

    def wait(self, timeout: datetime.timedelta) -> None:
        self.turns += 1
        if self.turns < 4:
            time.sleep(timeout.total_seconds())
            raise RuntimeError("Operation timed out!")

    def is_completed(self) -> bool:
        return self.turns >= 4


def test_a_group_that_is_well_is_waited_for() -> None:
    latch, work = Latch(), Slow()
    latch.begin(1)
    # What torch's own code gives where it means no limit.
    assert LatchedWork(latch, work, []).wait(datetime.timedelta(0)) is True
    assert (work.turns, latch.error) == (4, None)


class Never:
    """Work of gloo that is told nothing until its own time-out."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future

    def is_completed(self) -> bool:
        return False


@pytest.mark.parametrize("inside", [True, False])
def test_a_future_that_would_never_be_settled_is_settled_once(
    monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    latch, ending, never = Latch(), Ending(), Never()
    latch.begin(1)
    if inside:
        latch.enter()
    future = LatchedWork(latch, never, [], None, ending).get_future()
    ending.aborted()
    assert not ending.hopeless
    assert not future.done()
    monkeypatch.setattr(leaving, "LEAVE_S", 0.0)
    assert ending.hopeless
    ending.give_up()
    assert future.done()
    if inside:
        assert future.wait() == []
    else:
        with pytest.raises(GenerationOver):
            future.wait()
    assert latch.error is not None
    latch.begin(2)
    never.future.set_exception(RuntimeError("Timed out waiting"))  # type: ignore[arg-type]
    assert (latch.error, latch.swallowed) == (None, False)


def test_a_wait_with_a_limit_ends_at_it(pair: list[InnerGroup]) -> None:
    work = broadcast(1)(pair[0], 0)  # the other rank never begins it
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        pair[0].ending.wait(work, 0.2)
    assert time.monotonic() - began < GROUP_S / 2
    with pytest.raises(RuntimeError):
        work.wait(datetime.timedelta(seconds=0.01))
