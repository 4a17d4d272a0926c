"""Parking by itself: descriptors are closed whatever fails, and nothing is remembered that is gone."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import parking
from agent.custody import SLOT_NAMES, Custody, CustodyRefused
from agent.errors import ParkFailed
from agent.link import ArenaShared
from agent.parking import ParkedStates
from agent.transfer.arena import Header, Slots
from agent.transfer.manifest import Manifest, StorageEntry, TensorEntry

SIZE, STEP = 512, 3


def memfd(data: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd


def custody_at_rest() -> Custody:
    header = Header.create()
    for name in ("fence", "applying", "applied"):
        header.set(name, STEP)
    header.set("unclean", 0)
    slots = [Slots.create(name, SIZE) for name in SLOT_NAMES]
    custody = Custody()
    custody.take_layout([os.dup(header.fd), *(os.dup(each.fd) for each in slots)])
    for page in (header, *slots):
        page.close()
    tensor = TensorEntry.of(
        "t", "parameter", shape=[SIZE], dtype="uint8", strides=[1], storage_id=1
    )
    paper = Manifest.build([StorageEntry(1, SIZE)], [tensor]).encode()
    assert custody.take_part(whole(), [memfd(paper), memfd(bytes(SIZE))])
    return custody


def whole(part: int = 0, parts: int = 1) -> ArenaShared:
    return ArenaShared(which="live", epoch=1, part=part, parts=parts, storage_ids=[1 + part])


@pytest.fixture
def workers() -> Iterator[list[Any]]:
    made: list[Any] = [
        SimpleNamespace(
            record=SimpleNamespace(
                job_id="j", attempt=1, generation=1, rank=rank, worker_id=f"w{rank}"
            ),
            custody=custody_at_rest(),
            blocked=object(),
        )
        for rank in range(2)
    ]
    yield made
    for worker in made:
        worker.custody.close()


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def failing_dup(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Descriptors run out after so many."""
    real, made = os.dup, []

    def dup(fd: int) -> int:
        made.append(fd)
        if len(made) > after:
            raise OSError(errno.EMFILE, "too many open files")
        return real(fd)

    monkeypatch.setattr(os, "dup", dup)


def park(states: ParkedStates, workers: list[Any]) -> list[Any]:
    return asyncio.run(states.park(workers, STEP, None))


@pytest.mark.parametrize("after", range(6))
def test_descriptors_that_run_out_leave_none_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: list[Any], after: int
) -> None:
    states = ParkedStates(tmp_path / "parked", 0)
    park(states, workers)  # what asyncio opens once is open
    before = num_fds()
    # Five pages are looked at for their size; then a storage and five pages are written, for each rank.
    for skip in (0, 5 + 5):
        with monkeypatch.context() as patch:
            failing_dup(patch, skip + after)
            with pytest.raises(ParkFailed, match="too many open files"):
                park(states, workers)
        assert num_fds() == before
    assert len(park(states, workers)) == 2


def test_a_park_that_nobody_waits_for_any_more_closes_what_it_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: list[Any]
) -> None:
    states = ParkedStates(tmp_path / "parked", 0)
    park(states, workers)
    before = num_fds()
    held = threading.Event()

    async def cancelled() -> None:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(1)
        loop.set_default_executor(pool)
        first = loop.run_in_executor(None, held.wait, 20)  # the only thread is taken
        task = asyncio.ensure_future(states.park(workers, STEP, None))
        while pool._work_queue.empty():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.set()
        assert await first
        await loop.run_in_executor(None, int)  # behind what was parked

    asyncio.run(cancelled())
    assert num_fds() == before


def test_parking_again_that_fails_leaves_no_memory_of_the_first_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: list[Any]
) -> None:
    states = ParkedStates(tmp_path / "parked", 0)
    first = park(states, workers)
    assert states.find("j", 1, 0, before=2) == first[0]
    real: Callable[..., Any] = parking.rank_written

    def written(folder: Path, record: Any, *rest: Any) -> Any:
        if record.rank == 1:
            raise OSError(errno.EIO, "input/output error")
        return real(folder, record, *rest)

    monkeypatch.setattr(parking, "rank_written", written)
    with pytest.raises(ParkFailed):
        park(states, workers)
    assert states.find("j", 1, 0, before=2) is None
    assert list(states) == [first[1]]
    assert [parked.folder.is_dir() for parked in first] == [False, True]


def test_a_part_that_came_twice_is_refused_and_closed() -> None:
    before = num_fds()
    custody = Custody()
    assert not custody.take_part(whole(1, 2), [memfd(bytes(SIZE))])
    with pytest.raises(CustodyRefused, match="twice"):
        custody.take_part(whole(1, 2), [memfd(bytes(SIZE))])
    custody.close()
    assert num_fds() == before
