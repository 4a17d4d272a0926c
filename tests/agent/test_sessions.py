"""Ending a process with all it started: by its session, and by its cgroup where there is one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from agent import cgroups, machine, sessions
from agent.cgroups import Cgroup

FAMILY = """
import os, subprocess, sys, time
near = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
far = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(near.pid, far.pid, flush=True)
time.sleep(600)
"""


class Family:
    """A session leader, a child in its session, and one in a session of its own."""

    def __init__(self, group: Cgroup | None) -> None:
        self.leader = subprocess.Popen(
            [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
        )
        if group is not None:
            assert sessions.gather(self.leader.pid, group)
        assert self.leader.stdout is not None
        self.near, self.far = map(int, self.leader.stdout.readline().split())

    def end(self) -> None:
        for pid in (self.leader.pid, self.near, self.far):
            if not machine.is_ended(pid):
                os.kill(pid, 9)
        self.leader.wait()
        assert self.leader.stdout is not None
        self.leader.stdout.close()


@pytest.fixture
def group() -> Iterator[Cgroup]:
    made = cgroups.make(f"test-{uuid.uuid4().hex}")
    if made is None:
        pytest.skip("this machine lets us make no cgroup")
    yield made
    made.remove()


def test_without_a_cgroup_the_session_ends_and_what_left_it_does_not() -> None:
    family = Family(None)
    try:
        killed = asyncio.run(sessions.kill_all(family.leader.pid, None))
        assert killed == 2
        assert machine.is_ended(family.leader.pid)
        assert machine.is_ended(family.near)
        assert not machine.is_ended(family.far)
    finally:
        family.end()


def test_with_a_cgroup_what_left_the_session_ends_too(group: Cgroup) -> None:
    family = Family(group)
    try:
        killed = asyncio.run(sessions.kill_all(family.leader.pid, group))
        assert killed == 3
        assert machine.is_ended(family.far)
        assert not group.path.exists()
    finally:
        family.end()


def test_nothing_left_is_no_error(group: Cgroup) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    done.wait()
    assert asyncio.run(sessions.kill_all(done.pid, group)) == 0
    assert asyncio.run(sessions.kill_all(done.pid, None)) == 0


def test_a_process_is_known_by_its_start_and_not_by_its_number() -> None:
    own = os.getpid()
    ticks = machine.start_ticks(own)
    assert ticks is not None
    assert machine.is_running(own, ticks)
    assert not machine.is_running(own, ticks - 1)
    assert machine.start_ticks(2**22 - 1) is None


def test_the_mark_of_a_worker_is_found_in_its_environment() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"],
        env={**os.environ, "YOCO_RECONNECT": "/some/where"},
        stdout=subprocess.PIPE,
    )
    try:
        # Until it runs its own program, what the kernel shows may still be ours.
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        assert machine.carries(child.pid, "YOCO_RECONNECT", "/some/where")
        assert not machine.carries(child.pid, "YOCO_RECONNECT", "/some")
    finally:
        child.kill()
        child.communicate()
