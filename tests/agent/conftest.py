"""A control plane and an agent beside it, for every test of this folder that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .control_plane import ControlPlane
from .moving import Two
from .running import RunningAgent, running


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    plane = ControlPlane()
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def agent(plane: ControlPlane, tmp_path: Path) -> Iterator[RunningAgent]:
    with running(plane, tmp_path / "state") as agent:
        yield agent


@pytest.fixture(scope="module")
def shared_plane() -> Iterator[ControlPlane]:
    plane = ControlPlane(heartbeat_s=0.2)
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def shared_agent(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningAgent]:
    """One agent for all tests of a module that leave nothing behind but jobs of their own."""
    with running(shared_plane, tmp_path_factory.mktemp("shared") / "state") as agent:
        yield agent


@pytest.fixture(scope="module")
def two(shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("two")
    with running(shared_plane, folder / "a", "--carrier", "tcp") as a:
        options = {"name": "node-b", "token": "one-time-b"}
        with running(shared_plane, folder / "b", "--carrier", "tcp", **options) as b:
            yield Two(shared_plane, a, b)
