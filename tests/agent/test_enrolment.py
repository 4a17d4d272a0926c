"""Enrolment, heartbeats, readings and the command line: a real agent beside a real control plane."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from agent.config import load
from agent.errors import UserNotAccepted
from agent.launch import admit
from agent.protocol import WorkerStarted

from .control_plane import ControlPlane
from .running import ROOT, RunningAgent, launch, running


def test_an_agent_enrols_once_and_beats_with_its_own_token(
    plane: ControlPlane, agent: RunningAgent
) -> None:
    (request,) = plane.enrolled
    assert request.node == "node-a"
    inventory = request.inventory
    assert (inventory.rack, inventory.failure_domain, inventory.runs_as_root) == (
        "r1",
        "power-1",
        True,
    )
    assert [gpu.simulated for gpu in inventory.gpus] == [True]
    identity = agent.state_dir / "identity.json"
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    assert json.loads(identity.read_text())["token"] in plane.tokens
    plane.wait(lambda: len(plane.heartbeats) >= 3, "three heartbeats")
    assert [beat.sequence for beat in plane.heartbeats[:3]] == [1, 2, 3]
    assert plane.heartbeats[0].inventory is not None
    assert plane.heartbeats[2].inventory is None


def test_simulated_readings_follow_the_file(plane: ControlPlane, agent: RunningAgent) -> None:
    assert [r.value for r in plane.heartbeats[-1].readings] == [45.0]
    part = agent.state_dir / "part"
    part.write_text('{"temperature_c": 96}')
    part.replace(agent.state_dir / "simulated.json")
    plane.wait(lambda: plane.heartbeats[-1].readings[0].value == 96, "a hot reading")
    reading = plane.heartbeats[-1].readings[0]
    assert (reading.check, reading.unit, reading.simulated) == ("gpu_temperature", "celsius", True)
    (agent.state_dir / "simulated.json").write_text('{"temperature_c": "hot"}')
    plane.wait(lambda: plane.heartbeats[-1].readings[0].outcome == "transient", "an outcome")
    assert plane.heartbeats[-1].readings[0].value is None


def test_a_wrong_token_is_refused_with_its_code(plane: ControlPlane, tmp_path: Path) -> None:
    plane.enrollment_tokens.clear()
    agent = RunningAgent(plane, tmp_path / "state")
    done = agent.run(
        *("enroll", "--platform", plane.url, "--token", "x", "--name", "n"),
        *("--state-dir", str(tmp_path / "state")),
    )
    assert done.returncode == 1
    assert "token_refused" in done.stderr
    assert not (tmp_path / "state" / "identity.json").exists()


def test_enroll_then_run_without_a_token(plane: ControlPlane, tmp_path: Path) -> None:
    agent = RunningAgent(plane, tmp_path / "state")
    done = agent.run(
        *("enroll", "--platform", plane.url, "--token", "one-time", "--name", "node-b"),
        *("--state-dir", str(tmp_path / "state"), "--pool", "blue"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert plane.enrolled[0].inventory.pool == "blue"
    with running(plane, tmp_path / "state"):
        assert len(plane.enrolled) == 1


def test_bad_use_ends_with_two(plane: ControlPlane, tmp_path: Path) -> None:
    agent = RunningAgent(plane, tmp_path / "state")
    assert agent.run("run").returncode == 2
    assert agent.run("nonsense").returncode == 2
    done = agent.run("run", "--state-dir", str(tmp_path / "state"))
    assert (done.returncode, "config_invalid" in done.stderr) == (2, True)


def test_a_second_agent_over_one_state_directory_is_refused(agent: RunningAgent) -> None:
    done = agent.run("run", "--state-dir", str(agent.state_dir))
    assert done.returncode == 2
    assert "another agent runs" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be refused for being root")
def test_root_is_refused_unless_the_node_says_so(plane: ControlPlane, tmp_path: Path) -> None:
    with running(plane, tmp_path / "state", YOCO_ALLOW_ROOT="0"):
        assert plane.enrolled[0].inventory.runs_as_root is False
        result = plane.wait_result(plane.order(launch("worker.py")))
        assert (result.ok, result.code) == (False, "root_refused")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_worker_runs_as_the_user_of_its_order(plane: ControlPlane, tmp_path: Path) -> None:
    options = ("--allow-user", "nobody", "--allow-command", "/bin/sleep")
    with running(plane, tmp_path / "state", *options):
        order = launch("x", run_as="nobody", command=["/bin/sleep", "60"], working_directory="/")
        assert plane.wait_result(plane.order(order)).ok
        pid = plane.wait_event(WorkerStarted).pid
        status = Path(f"/proc/{pid}/status").read_text()
        (uids,) = [line for line in status.splitlines() if line.startswith("Uid:")]
        assert set(uids.split()[1:]) == {"65534"}


def test_nothing_is_accepted_by_a_node_that_lists_nothing(
    plane: ControlPlane, tmp_path: Path
) -> None:
    config = load({"state_dir": str(tmp_path)}, {})
    with pytest.raises(UserNotAccepted):
        admit(launch("worker.py", working_directory=str(ROOT)), config)
