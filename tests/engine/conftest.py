"""One hatchery and one set of unbroken twins for all tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proven import proven

from .harness import Coordinator, Hatchery, Story, read_story, run_twin
from .killing import UNHEARD

SCRIPT = Path(__file__).with_name("train_job.py")
Twin = Callable[..., Story]


@pytest.fixture(scope="session")
def hatchery() -> Iterator[Hatchery]:
    started = Hatchery()
    yield started
    started.close()


@pytest.fixture(scope="session")
def twin(hatchery: Hatchery, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """The story of the same job on plain gloo, run once for each set of settings."""
    known: dict[Any, Story] = {}

    def story(ranks: int, **settings: str) -> Story:
        key = (ranks, tuple(sorted(settings.items())))
        if key not in known:
            folder = tmp_path_factory.mktemp("twin")
            known[key] = run_twin(
                hatchery,
                folder,
                SCRIPT,
                ranks=ranks,
                environment={"YOCO_DIGEST_EVERY": "1", **settings},
            )
        return known[key]

    return story


@pytest.fixture
def job(hatchery: Hatchery, tmp_path: Path) -> Iterator[Callable[..., Coordinator]]:
    """Start a coordinated job; whatever is left of it ends with the test."""
    made: list[Coordinator] = []

    def start(ranks: int, *, options: dict[str, Any] | None = None, **settings: str) -> Coordinator:
        coordinator = Coordinator(
            hatchery, tmp_path, SCRIPT, ranks=ranks,
            environment={"YOCO_DIGEST_EVERY": "1", **settings}, **(options or {}),
        )  # fmt: skip
        made.append(coordinator)
        return coordinator

    yield start
    for coordinator in made:
        coordinator.close()


def story_of(coordinator: Coordinator) -> Story:
    return read_story(coordinator.file)


def assert_identical(
    coordinator: Coordinator, unbroken: Story, ranks: int, steps: int, framework: str = "PyTorch"
) -> None:
    """Every digest and every link of the trail of every rank, at every step."""
    assert not [worker.log for worker in coordinator.workers if UNHEARD in worker.log]
    story = story_of(coordinator)
    assert set(unbroken.digests) == {(r, s) for r in range(ranks) for s in range(1, steps + 1)}
    assert story.digests == unbroken.digests
    assert story.commits == unbroken.commits
    joined = [worker.joined for worker in coordinator.workers if worker.joined is not None]
    proven(
        framework=framework, parallelism=joined[0].parallelism, ranks=ranks, through="engine",
        sources=[source for _rank, source, _finish in coordinator.moved],
    )  # fmt: skip
