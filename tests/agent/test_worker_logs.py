"""What a worker prints is bounded: its last part is kept, and whoever reads along goes on reading."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from agent.protocol import RankJoined
from agent.tail import follow
from agent.worker_logs import LogKeeper, cut, previous, tail

from .control_plane import ControlPlane
from .running import launch, running

LINE = b"%06d\n"
BOUND = 7_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "w.log"


def lines(first: int, last: int) -> bytes:
    return b"".join(LINE % number for number in range(first, last))


def test_a_log_below_half_the_bound_is_left_alone(log: Path) -> None:
    log.write_bytes(lines(0, 500))
    assert cut(log, BOUND) is False
    assert log.read_bytes() == lines(0, 500)
    assert not previous(log).exists()


def test_the_last_part_of_a_long_log_is_kept_and_it_begins_anew(log: Path) -> None:
    log.write_bytes(lines(0, 2_000))
    with log.open("ab") as worker:
        assert cut(log, BOUND) is True
        worker.write(lines(2_000, 2_010))
    assert log.read_bytes() == lines(2_000, 2_010)
    assert previous(log).read_bytes() == lines(1_500, 2_000)
    assert tail(log, 14 * 7) == lines(1_996, 2_010)


def test_however_long_a_worker_prints_both_parts_stay_below_the_bound(log: Path) -> None:
    with log.open("ab") as worker:
        for number in range(0, 5_000, 100):
            worker.write(lines(number, number + 100))
            worker.flush()
            cut(log, BOUND)
            sizes = [path.stat().st_size for path in (log, previous(log)) if path.exists()]
            assert sum(sizes) <= BOUND
    assert tail(log, 7_000) == lines(0, 5_000)[-sum(sizes) :]


def test_a_disk_that_takes_no_copy_gets_its_room_back(log: Path) -> None:
    log.write_bytes(lines(0, 2_000))
    previous(log).mkdir()  # nothing can be put in its place
    assert cut(log, BOUND) is False
    assert log.read_bytes() == b""


def test_a_worker_that_has_ended_is_looked_at_once_more(log: Path) -> None:
    log.write_bytes(lines(0, 10))

    async def looks() -> list[int]:
        keeper, sizes = LogKeeper(BOUND), []
        await keeper.look([log])
        for _ in range(2):
            log.write_bytes(lines(0, 2_000))
            await keeper.look([])
            sizes.append(log.stat().st_size)
        return sizes

    assert asyncio.run(looks()) == [0, 14_000]


def test_whoever_follows_a_log_goes_on_when_it_is_cut(log: Path) -> None:
    out = io.BytesIO()

    async def shown(wanted: bytes) -> None:
        async with asyncio.timeout(10):
            while out.getvalue() != wanted:
                await asyncio.sleep(0.01)

    async def watched() -> None:
        ended = asyncio.Event()
        log.write_bytes(lines(0, 2_000))
        task = asyncio.create_task(follow(log, ended, out))
        await shown(lines(0, 2_000))
        assert cut(log, BOUND) is True
        with log.open("ab") as worker:
            worker.write(lines(2_000, 2_001))
        await shown(lines(0, 2_001))
        ended.set()
        await task

    asyncio.run(watched())


def test_a_running_agent_bounds_what_its_workers_print(plane: ControlPlane, tmp_path: Path) -> None:
    with running(plane, tmp_path / "a", "--log-bytes-max", str(BOUND)) as agent:
        plane.order(launch("worker.py", worker_id="w-loud"))
        plane.wait_event(RankJoined, worker_id="w-loud")
        log = agent.state_dir / "logs" / "w-loud.log"
        with log.open("ab") as loud:  # as the worker itself has it
            loud.write(lines(0, 2_000))
        plane.wait(lambda: previous(log).exists() and log.stat().st_size < BOUND, "the cut")
        # The worker prints a few words of its own.
        assert lines(1_510, 2_000) in previous(log).read_bytes()
        assert lines(1_490, 1_500) not in previous(log).read_bytes()
        assert agent.worker("w-loud") is not None
