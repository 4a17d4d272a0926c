"""Ranks that do not move, told of and ended by a real agent; their stacks; state that is kept."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent import stacks
from agent.protocol import (
    EndHungOrder,
    InterruptOrder,
    Limits,
    RankExited,
    Standing,
    StopOrder,
    WorkerStarted,
)
from agent.workers import Worker

from .control_plane import ControlPlane
from .running import RunningAgent, launch

LIMITS = Limits(stall_s=0.3, compute_s=0.3, frozen_s=0.3, join_s=20.0)


@pytest.fixture(scope="module")
def plane(shared_plane: ControlPlane) -> ControlPlane:
    return shared_plane


@pytest.fixture(scope="module")
def agent(shared_agent: RunningAgent) -> RunningAgent:
    return shared_agent


def told(plane: ControlPlane, worker_id: str) -> Standing | None:
    statuses = {w.worker_id: w for w in plane.heartbeats[-1].workers}
    return statuses[worker_id].standing if worker_id in statuses else None


def stuck(plane: ControlPlane, worker_id: str, **changes: Any) -> Standing:
    plane.order(launch("worker.py", "stuck", worker_id=worker_id, limits=LIMITS, **changes))
    standing = plane.wait(lambda: told(plane, worker_id), "a standing in a heartbeat")
    assert isinstance(standing, Standing)
    return standing


def end(plane: ControlPlane, worker_id: str, still_s: float) -> str:
    return plane.order(
        EndHungOrder(
            job_id=f"job-{worker_id}", attempt=1, generation=1, worker_id=worker_id,
            still_s=still_s, reason="others wait for it",
        )
    )  # fmt: skip


def test_a_rank_that_does_not_move_is_told_of_with_where_it_stands(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    standing = stuck(plane, "h-told")

    assert (standing.phase, standing.step) == ("forward", 7)
    assert [(g.key, g.issued, g.pending) for g in standing.groups] == [(77, 6, 0)]
    assert standing.still_s >= LIMITS.stall_s


def test_a_rank_that_hangs_is_ended_with_its_stacks_and_stays_in_custody(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    standing = stuck(plane, "h-ended")
    assert plane.wait_result(end(plane, "h-ended", standing.still_s)).ok
    exited = plane.wait_event(RankExited, worker_id="h-ended")

    assert (exited.signal, exited.custody, exited.position.fence) == (signal.SIGKILL, "usable", 7)
    assert exited.detail == "hung: others wait for it"
    assert exited.stood_s >= standing.still_s
    assert exited.stacks.startswith("py-spy dump")
    assert "stuck_in_its_own_code" in exited.stacks


def test_a_rank_that_has_moved_since_is_let_be(plane: ControlPlane, agent: RunningAgent) -> None:
    stuck(plane, "h-moved")
    result = plane.wait_result(end(plane, "h-moved", 3600.0))

    assert (result.ok, result.code) == (False, "rank_moved")
    assert told(plane, "h-moved") is not None
    assert not [e for e in plane.bodies(RankExited) if e.worker_id == "h-moved"]


def test_a_rank_that_hears_no_interrupt_is_ended_at_the_limit_of_its_phase(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    stuck(plane, "h-deaf")
    plane.order(InterruptOrder(job_id="job-h-deaf", attempt=1, generation=1))
    exited = plane.wait_event(RankExited, worker_id="h-deaf")

    assert exited.detail.startswith("hung: it did not stop: not moved for ")
    assert (exited.signal, exited.custody) == (signal.SIGKILL, "usable")


def test_a_stop_that_keeps_state_keeps_it_until_one_that_does_not(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("worker.py", worker_id="h-kept"))
    log = agent.state_dir / "logs" / "h-kept.log"
    plane.wait(lambda: log.exists() and "kept 1" in log.read_text(), "its arena in custody")
    stop = StopOrder(
        job_id="job-h-kept", attempt=1, worker_ids=["h-kept"], reason="failed", keep_state=True
    )
    assert plane.wait_result(plane.order(stop)).ok
    exited = plane.wait_event(RankExited, worker_id="h-kept")

    assert (exited.custody, exited.position.fence) == ("usable", 7)
    assert plane.wait_result(plane.order(stop)).ok
    assert agent.worker("h-kept") is not None

    release = StopOrder(job_id="job-h-kept", attempt=1, worker_ids=["h-kept"], reason="released")
    assert plane.wait_result(plane.order(release)).ok
    assert agent.worker("h-kept") is None


def test_what_a_script_raised_is_told_with_its_end(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("worker.py", "raise", worker_id="h-raise"))
    plane.wait_event(WorkerStarted, worker_id="h-raise")
    exited = plane.wait_event(RankExited, worker_id="h-raise")

    assert (exited.exit_code, exited.exception) == (1, "ValueError: bad batch")


ASKED = """
from agent.training.session import write_stacks_on_signal
import sys, time
write_stacks_on_signal()
def waits_for_ever():
    print("up", flush=True)
    time.sleep(600)
waits_for_ever()
"""


@pytest.mark.parametrize(
    ("stopped", "expected"),
    [
        pytest.param(False, "waits_for_ever", id="asked"),
        pytest.param(True, "no stacks", id="stopped"),
    ],
)
def test_without_py_spy_the_process_is_asked_for_its_stacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stopped: bool, expected: str
) -> None:
    monkeypatch.setattr(stacks, "_program", lambda: None)
    log = tmp_path / "log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", ASKED], stdout=subprocess.PIPE, stderr=out
        )
    assert process.stdout is not None
    process.stdout.readline()
    pidfd = os.pidfd_open(process.pid)
    if stopped:
        process.send_signal(signal.SIGSTOP)
    record = SimpleNamespace(pid=process.pid, log=str(log), joined=True)
    worker = cast(Worker, SimpleNamespace(record=record, pidfd=pidfd, alive=True))
    try:
        text = asyncio.run(stacks.stacks_of(worker))
    finally:
        process.kill()
        process.wait()
        os.close(pidfd)

    assert expected in text
    assert "py-spy is not installed" in text
