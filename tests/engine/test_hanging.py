"""Ranks that hang are found from their header pages alone, ended, and healed; slow ones are let be."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.protocol import Limits, Standing
from agent.standings import Place, standing_of, stands_still
from jobs.hanging import Judgement, Network, Nobody, Patience, Suspect, judge

from .conftest import Twin, assert_identical
from .harness import Coordinator, Worker

Job = Callable[..., Coordinator]
STEPS = 9
COMMON = {"JOB_KIND": "ddp", "JOB_STEPS": str(STEPS)}
LIMITS = Limits(
    stall_s=2.0, compute_s=2.0, frozen_s=2.0, data_s=2.5, tail_s=2.5, network_s=3.0,
    collective_s=60.0, blocked_s=120.0, join_s=120.0,
)  # fmt: skip
LOOK_S = 0.2


class Watch:
    """Plays the agents' and the platform's part: looks at every page, judges, acts on what is judged."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.judged: list[Judgement] = []
        self._seen: dict[int, tuple[Place, int]] = {}
        self._looked_at = 0.0
        coordinator.on_turn = self.look

    def look(self) -> None:
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        ranks = self.coordinator.ranks
        standings = {rank: self._standing(worker) for rank, worker in ranks.items()}
        settled = all(
            not w.exited and w.adopting is None and not w.finished for w in ranks.values()
        )
        found = judge(standings, LIMITS) if settled else Nobody()
        if isinstance(found, Nobody) or self.coordinator.regrouping:
            return
        if not self.judged or type(self.judged[-1]) is not type(found):
            self.judged.append(found)
        if isinstance(found, Suspect):
            self.coordinator.kill(found.rank)
        elif isinstance(found, Network):
            self.coordinator.regrouping = True
            self.coordinator.interrupt()

    def _standing(self, worker: Worker) -> Standing | None:
        header = worker.header
        if header is None:
            return None
        now_ns, place = time.monotonic_ns(), Place.of(header)
        before = self._seen.get(worker.pid)
        since_ns = before[1] if before is not None and before[0] == place else now_ns
        self._seen[worker.pid] = (place, since_ns)
        if place.generation != self.coordinator.generation:
            return None
        standing = standing_of(header, place, (now_ns - since_ns) / 1e9, now_ns)
        return standing if stands_still(standing, LIMITS.stall_s) else None


def watched(job: Job, **settings: str) -> tuple[Coordinator, Watch]:
    coordinator = job(3, options={"limits": LIMITS}, **{**COMMON, **settings})
    return coordinator, Watch(coordinator)


@pytest.mark.parametrize(
    ("rank", "where", "finish"),
    [
        pytest.param(1, "forward:loop", "none", id="an endless loop"),
        pytest.param(0, "backward:gil", "none", id="native code that keeps the GIL"),
        pytest.param(2, "forward:stop", "none", id="a stopped process"),
        pytest.param(1, "vote:stop", "none", id="stopped inside a collective"),
        pytest.param(1, "tail:loop", "tail", id="an endless loop after the step"),
    ],
)
def test_a_rank_that_hangs_is_found_and_healed(
    job: Job, twin: Twin, rank: int, where: str, finish: str
) -> None:
    coordinator, watch = watched(job, JOB_HANG=f"{rank}:6:{where}")
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert [type(each) for each in watch.judged if not isinstance(each, Patience)] == [Suspect]
    assert coordinator.moved == [(rank, "custody", finish)]
    assert_identical(coordinator, twin(3, **COMMON), 3, STEPS)


def test_a_rank_whose_loader_has_deadlocked_is_found_and_healed(job: Job, twin: Twin) -> None:
    coordinator, watch = watched(job, JOB_WORKERS="2")
    trap = Path(f"{coordinator.folder / 'gate'}.deadlock-1")
    coordinator.run(coordinator.ready)
    trap.touch()

    def look() -> None:
        watch.look()
        if any(isinstance(each, Suspect) for each in watch.judged):
            trap.unlink(missing_ok=True)  # its successor has a loader of its own

    coordinator.on_turn = look
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    suspects = [each for each in watch.judged if isinstance(each, Suspect)]
    assert [each.rank for each in suspects] == [1]
    assert " in data after step " in suspects[0].words
    assert [rank for rank, _name, _finish in coordinator.moved] == [1]
    assert_identical(coordinator, twin(3, JOB_WORKERS="2", **COMMON), 3, STEPS)


def test_a_rank_that_evaluates_is_waited_for(job: Job, twin: Twin) -> None:
    coordinator, watch = watched(job, JOB_HANG="1:6:forward:evaluating")
    before = dict(coordinator.ranks)
    coordinator.open_gate()
    coordinator.run(lambda: bool(watch.judged), 60)
    (coordinator.folder / "gate.release").touch()
    coordinator.run(coordinator.finished, 60)
    assert [type(each) for each in watch.judged] == [Patience]
    assert coordinator.ranks == before
    assert (coordinator.moved, coordinator.generation) == ([], 0)
    assert_identical(coordinator, twin(3, **COMMON), 3, STEPS)


def test_a_collective_that_comes_through_for_nobody_costs_nobody_its_place(
    job: Job, twin: Twin
) -> None:
    coordinator, watch = watched(job, JOB_HANG="*:6:vote:lost")
    before = dict(coordinator.ranks)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert [type(each) for each in watch.judged] == [Network]
    assert coordinator.ranks == before
    assert (coordinator.moved, coordinator.generation) == ([], 1)
    assert_identical(coordinator, twin(3, **COMMON), 3, STEPS)


def test_a_rank_that_goes_on_before_its_limit_is_let_be(job: Job, twin: Twin) -> None:
    coordinator, watch = watched(job, JOB_HANG="1:6:forward:slow")
    coordinator.open_gate()
    coordinator.run(lambda: _waits(coordinator.ranks[0]), 60)
    (coordinator.folder / "gate.release").touch()
    coordinator.run(coordinator.finished, 60)
    assert watch.judged == []
    assert coordinator.moved == []
    assert_identical(coordinator, twin(3, **COMMON), 3, STEPS)


def _waits(worker: Worker) -> bool:
    """It is inside a collective of the step that the slow rank is to compute."""
    header = worker.header
    return (
        header is not None
        and header.get("applied") == 5
        and any(group.pending for group in header.groups())
    )


def test_a_stopped_process_that_is_let_run_again_in_time_is_let_be(job: Job, twin: Twin) -> None:
    coordinator, watch = watched(job, JOB_HANG="1:6:forward:stop")
    coordinator.open_gate()
    coordinator.run(lambda: _is_stopped(coordinator.ranks[1]), 60)
    coordinator.kill(1, signal.SIGCONT)
    coordinator.run(coordinator.finished, 60)
    assert (watch.judged, coordinator.moved) == ([], [])
    assert_identical(coordinator, twin(3, **COMMON), 3, STEPS)


def _is_stopped(worker: Worker) -> bool:
    return Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
