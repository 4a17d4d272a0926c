"""Workers started, heard, lost and ended by a real agent: one agent for the whole module."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from agent.protocol import (
    Limits,
    NotJoined,
    RankExited,
    RankFinished,
    RankJoined,
    StandbyWarm,
    StopOrder,
    WorkerStarted,
)

from .control_plane import ControlPlane
from .running import ROOT, RunningAgent, launch


@pytest.fixture(scope="module")
def plane(shared_plane: ControlPlane) -> ControlPlane:
    return shared_plane


@pytest.fixture(scope="module")
def agent(shared_agent: RunningAgent) -> RunningAgent:
    return shared_agent


def test_a_launched_rank_joins_and_its_state_is_in_custody(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    settings = {"YOCO_DIGEST_EVERY": "20", "RANK": "forged"}
    order = launch(
        "worker.py", worker_id="w-launch", environment={"PYTHONPATH": str(ROOT), **settings}
    )
    order_id = plane.order(order)
    assert plane.wait_result(order_id).ok
    started = plane.wait_event(WorkerStarted, worker_id="w-launch")
    joined = plane.wait_event(RankJoined, worker_id="w-launch")
    assert (joined.rank, joined.generation, joined.replica_group) == (0, 1, [0, 1])
    plane.wait(lambda: _state_of(plane, "w-launch") == "running", "running in a heartbeat")
    assert os.getsid(started.pid) == started.pid
    environment = Path(f"/proc/{started.pid}/environ").read_bytes().split(b"\0")
    assert {b"RANK=0", b"WORLD_SIZE=2", b"LOCAL_RANK=0", b"MASTER_ADDR=127.0.0.1"} <= set(
        environment
    )
    assert b"YOCO_DIGEST_EVERY=20" in environment
    assert b"YOCO_ALLOW_ROOT=1" not in environment  # the agent's own settings stay behind
    os.kill(started.pid, signal.SIGKILL)
    exited = plane.wait_event(RankExited, worker_id="w-launch")
    assert (exited.signal, exited.exit_code, exited.custody) == (signal.SIGKILL, None, "usable")
    assert (exited.position.fence, exited.position.applied) == (7, 7)
    assert exited.position.holds == {"1": [8]}
    assert exited.detail == "kept 1"


def test_a_killed_rank_is_told_of_at_once_and_takes_its_children_with_it(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("worker.py", "fork", worker_id="w-kill"))
    pid = plane.wait_event(WorkerStarted, worker_id="w-kill").pid
    plane.wait_event(RankJoined, worker_id="w-kill")
    first = (agent.state_dir / "logs" / "w-kill.log").read_text().splitlines()[0]
    children = [int(word) for word in first.split()[1:]]
    assert all(os.path.exists(f"/proc/{child}") for child in children)
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    plane.wait_event(RankExited, worker_id="w-kill")
    (heard_at,) = [
        at
        for _, event, at in plane.events
        if isinstance(event.body, RankExited) and event.body.worker_id == "w-kill"
    ]
    assert heard_at - killed_at < 1.0  # far below any cadence; docs/agent.md has the figure
    assert not [child for child in children if _runs(child)]


def test_a_worker_that_ends_by_itself_says_how(plane: ControlPlane, agent: RunningAgent) -> None:
    plane.order(launch("plain.py", "0", "3", worker_id="w-ends"))
    exited = plane.wait_event(RankExited, worker_id="w-ends")
    assert (exited.exit_code, exited.signal, exited.custody) == (3, None, "none")
    assert (exited.position, exited.detail) == (None, "last words")


def test_what_a_script_said_last_is_told_without_control_characters(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    words = r"print('\x1b[31mout\0 of\tmemory\x9b\ud800\x7f'.encode('utf-8', 'replace').decode())"
    order = launch("plain.py", worker_id="w-binary", command=[sys.executable, "-c", words])
    plane.order(order)
    exited = plane.wait_event(RankExited, worker_id="w-binary")
    assert exited.detail == "[31mout of memory?"


def test_a_script_that_never_joins_is_told_of(plane: ControlPlane, agent: RunningAgent) -> None:
    plane.order(launch("plain.py", "600", "0", worker_id="w-plain", limits=Limits(join_s=0.3)))
    told = plane.wait_event(NotJoined, worker_id="w-plain")
    assert (told.worker_id, told.rank) == ("w-plain", 0)
    plane.wait(lambda: _state_of(plane, "w-plain") == "not_joined", "not_joined in a heartbeat")
    done = agent.run("status", "--state-dir", str(agent.state_dir), "--json")
    found = json.loads(done.stdout)["workers"]
    (worker,) = [worker for worker in found if worker["worker_id"] == "w-plain"]
    assert worker["protection"] == "not protected: script never joined"


def test_a_standby_warms_and_leaves_nothing_in_custody(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("worker.py", worker_id="s-warm", rank=None))
    warm = plane.wait_event(StandbyWarm, worker_id="s-warm")
    assert (warm.worker_id, warm.fingerprint) == ("s-warm", "same")
    os.kill(plane.wait_event(WorkerStarted, worker_id="s-warm").pid, signal.SIGKILL)
    exited = plane.wait_event(RankExited, worker_id="s-warm")
    assert (exited.rank, exited.custody, exited.position) == (None, "none", None)


def test_a_finished_rank_is_not_kept(plane: ControlPlane, agent: RunningAgent) -> None:
    plane.order(launch("worker.py", "finish", worker_id="w-finish"))
    plane.wait_event(RankFinished, worker_id="w-finish")
    exited = plane.wait_event(RankExited, worker_id="w-finish")
    assert (exited.exit_code, exited.custody) == (0, "none")


def test_stop_ends_a_worker_and_keeps_nothing(plane: ControlPlane, agent: RunningAgent) -> None:
    plane.order(launch("worker.py", worker_id="w-stop"))
    plane.wait_event(RankJoined, worker_id="w-stop")
    stop = StopOrder(job_id="job-w-stop", attempt=1, worker_ids=[], reason="cancelled")
    assert plane.wait_result(plane.order(stop)).ok
    exited = plane.wait_event(RankExited, worker_id="w-stop")
    assert (exited.exit_code, exited.custody, exited.position) == (0, "none", None)
    assert exited.detail == "ended by order: cancelled"


def test_a_worker_that_does_not_listen_is_stopped_all_the_same(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    plane.order(launch("plain.py", "600", "0", worker_id="w-deaf"))
    plane.wait_event(WorkerStarted, worker_id="w-deaf")
    stop = StopOrder(job_id="job-w-deaf", attempt=1, worker_ids=["w-deaf"], reason="cancelled")
    assert plane.wait_result(plane.order(stop)).ok
    assert plane.wait_event(RankExited, worker_id="w-deaf").signal == signal.SIGKILL


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"run_as": "daemon"}, "user_not_accepted"),
        ({"command": ["/bin/sh", "-c", "true"]}, "command_not_accepted"),
        ({"command": [sys.executable, "no_such.py"]}, "script_not_found"),
        ({"working_directory": "/no/such/folder"}, "working_directory_not_found"),
        ({"command": []}, "bad_order"),
        ({"command": [Path(sys.executable).name, "-c", ""]}, "command_not_accepted"),
        ({"environment": {"PATH": "/tmp"}}, "environment_not_accepted"),
        ({"environment": {"LD_PRELOAD": "/tmp/x.so"}}, "environment_not_accepted"),
        ({"environment": {"YOCO_WORKER": "forged"}}, "environment_not_accepted"),
        ({"environment": {"A=B": "x"}}, "environment_not_accepted"),
        ({"worker_id": "../../escape"}, "bad_order"),
        ({"rank": 2}, "bad_order"),
    ],
)
def test_what_this_node_does_not_accept_is_refused_by_code(
    plane: ControlPlane, agent: RunningAgent, changes: dict, code: str
) -> None:
    order = launch("worker.py", **changes)
    result = plane.wait_result(plane.order(order))
    assert (result.ok, result.code) == (False, code)
    assert plane.bodies(WorkerStarted, job_id=order.job_id) == []


def _state_of(plane: ControlPlane, worker_id: str) -> str:
    found = {w.worker_id: w.state for w in plane.heartbeats[-1].workers}
    return found.get(worker_id, "")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
