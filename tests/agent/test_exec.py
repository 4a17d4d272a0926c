"""``yoco-agent exec`` and ``status``: a person's own commands under the running agent."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.control import NEVER_JOINED
from agent.protocol import RankExited, WorkerStarted

from .control_plane import ControlPlane
from .running import ROOT, SCRIPTS, RunningAgent


@pytest.fixture(scope="module")
def plane(shared_plane: ControlPlane) -> ControlPlane:
    return shared_plane


@pytest.fixture(scope="module")
def agent(shared_agent: RunningAgent) -> RunningAgent:
    return shared_agent


def test_exec_shows_the_output_and_ends_as_the_command_did(agent: RunningAgent) -> None:
    done = _exec(agent, sys.executable, str(SCRIPTS / "plain.py"), "0.1", "0")
    assert (done.returncode, done.stdout) == (0, "plain output\nlast words\n")
    done = _exec(agent, sys.executable, str(SCRIPTS / "plain.py"), "0", "5")
    assert (done.returncode, done.stdout) == (1, "plain output\nlast words\n")
    assert "command_failed" in done.stderr
    assert "status 5" in done.stderr


def test_a_command_that_never_joins_is_shown_as_not_protected(agent: RunningAgent) -> None:
    done = _exec(agent, sys.executable, str(SCRIPTS / "plain.py"), "1.5", "0", join_s="0.2")
    assert done.returncode == 0
    assert NEVER_JOINED in done.stderr
    with _running_exec(agent, sys.executable, str(SCRIPTS / "plain.py"), "600", "0") as process:
        agent.wait_status(lambda s: [w.protection for w in s.workers if w.local] == [NEVER_JOINED])
        shown = agent.run("status", "--state-dir", str(agent.state_dir), "--config", "/dev/null")
        assert "not protected" in shown.stdout
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 1
    agent.wait_status(lambda s: not s.workers)


def test_a_local_job_is_not_the_platforms(plane: ControlPlane, agent: RunningAgent) -> None:
    with _running_exec(agent, sys.executable, str(SCRIPTS / "worker.py"), "local-job") as process:
        agent.wait_status(lambda s: any(w.custody == "usable" for w in s.workers))
        (worker,) = agent.status().workers
        assert (worker.local, worker.protection) == (
            True,
            "not protected: a local job has no spare",
        )
        seen = len(plane.heartbeats)
        plane.wait(lambda: len(plane.heartbeats) > seen + 1, "heartbeats")
        assert plane.heartbeats[-1].workers == []
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert plane.bodies(WorkerStarted) == []
    assert plane.bodies(RankExited) == []


def test_exec_without_an_agent_or_without_a_command_is_refused(
    agent: RunningAgent, tmp_path: Path
) -> None:
    done = agent.run("exec", "--state-dir", str(tmp_path), "--", "/bin/true")
    assert (done.returncode, "agent_not_running" in done.stderr) == (1, True)
    assert agent.run("exec", "--state-dir", str(tmp_path)).returncode == 2
    done = _exec(agent, "/no/such/command")
    assert (done.returncode, "command_not_found" in done.stderr) == (1, True)
    done = _exec(agent, sys.executable, "no_such.py")
    assert (done.returncode, "script_not_found" in done.stderr) == (1, True)


@pytest.mark.parametrize("line", [b"{", b'{"type": "format_disk"}\n', b"\xff\n", b"[" * 70000])
def test_malformed_words_on_the_control_socket_get_one_error(
    agent: RunningAgent, line: bytes
) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(agent.state_dir / "control.sock"))
        raw.sendall(line)
        raw.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert b"bad_message" in answer
    assert agent.status().node == "node-a"


def _exec(agent: RunningAgent, *command: str, join_s: str = "30") -> subprocess.CompletedProcess:
    words = ["exec", "--state-dir", str(agent.state_dir), "--join-s", join_s, "--", *command]
    return agent.run(*words)


class _running_exec:
    """An ``exec`` in a process of its own, interrupted at the end at the latest."""

    def __init__(self, agent: RunningAgent, *command: str) -> None:
        words = ["exec", "--state-dir", str(agent.state_dir), "--join-s", "0.3", "--", *command]
        self.argv = [sys.executable, "-m", "agent", *words]
        self.agent = agent

    def __enter__(self) -> subprocess.Popen:
        self.process = subprocess.Popen(
            self.argv,
            env=self.agent.environment(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.agent.wait_status(lambda s: any(w.local for w in s.workers))
        return self.process

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            self.process.kill()
        self.process.communicate()
