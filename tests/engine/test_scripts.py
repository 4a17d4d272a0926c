"""Ordinary scripts lose a rank and equal their unbroken twins: precision, compilation, averages, sharing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import assert_identical
from .harness import Coordinator, Hatchery, Story, run_twin
from .killing import UNHEARD

pytestmark = pytest.mark.timeout(240)
SCRIPT = Path(__file__).with_name("script_job.py")
STEPS = 8
COMMON = {"JOB_STEPS": str(STEPS), "YOCO_DIGEST_EVERY": "1"}
Start = Callable[..., Coordinator]


@pytest.fixture(scope="module")
def unbroken(hatchery: Hatchery, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Story]:
    known: dict[str, Story] = {}

    def story(name: str, **settings: str) -> Story:
        if name not in known:
            folder = tmp_path_factory.mktemp("twin")
            environment = {**COMMON, "JOB_SCRIPT": name, **settings}
            known[name] = run_twin(hatchery, folder, SCRIPT, ranks=3, environment=environment)
        return known[name]

    return story


@pytest.fixture
def start(hatchery: Hatchery, tmp_path: Path) -> Iterator[Start]:
    made: list[Coordinator] = []

    def started(name: str, kills: str) -> Coordinator:
        environment = {**COMMON, "JOB_SCRIPT": name, "JOB_KILL": kills}
        standbys = 1 + kills.count(",")
        made.append(
            Coordinator(
                hatchery, tmp_path, SCRIPT, ranks=3, standbys=standbys, environment=environment
            )
        )
        return made[-1]

    yield started
    for coordinator in made:
        coordinator.close()


def go_through(coordinator: Coordinator) -> None:
    coordinator.run(coordinator.ready, 120)  # a compiler takes its time
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 120)
    assert not [worker.log for worker in coordinator.workers if UNHEARD in worker.log]


NAMES = [
    "autocast", "scaler", "fused scaler", "activation checkpointing", "compiled", "closure",
    "frozen and unused", "tied weights", "sparse embedding", "sparse embedding, two optimizers",
    "averaged model", "hand-written average",
]  # fmt: skip
KILLS = ("0:5:forward", "1:6:inside", "0:7:tail")


@pytest.mark.parametrize("name", NAMES)
def test_a_script_that_has_this_loses_three_ranks_and_equals_its_twin(
    start: Start, unbroken: Any, name: str
) -> None:
    story = unbroken(name)
    coordinator = start(name, ",".join(KILLS))
    go_through(coordinator)
    assert [(rank, finish) for rank, _source, finish in coordinator.moved] == [
        (0, "none"), (1, "tail"), (0, "tail"),
    ]  # fmt: skip
    assert_identical(coordinator, story, 3, STEPS)


@pytest.mark.parametrize(
    ("name", "source", "finish"),
    [("hand-written average", "replica", "tail"), ("sharded average", "shadow", "apply")],
)
def test_a_rank_that_dies_while_averaged_weights_are_in_place_leaves_none_of_them_behind(
    start: Start, unbroken: Any, name: str, source: str, finish: str
) -> None:
    story = unbroken(name)
    coordinator = start(name, "1:6:swapped")
    go_through(coordinator)
    assert coordinator.moved == [(1, source, finish)]
    assert_identical(coordinator, story, 3, STEPS)


def test_nothing_of_what_a_borrowed_model_held_is_left_in_it(start: Start, unbroken: Any) -> None:
    story = unbroken("borrowed whole", JOB_UNBORROWED="1")
    coordinator = start("borrowed whole", ",".join(KILLS))
    coordinator.run(coordinator.ready, 120)
    standbys = [worker.header for worker in coordinator.workers if worker.rank is None]
    assert [header and header.get("applied") for header in standbys] == [-1] * len(KILLS)
    go_through(coordinator)
    assert [rank for rank, _source, _finish in coordinator.moved] == [0, 1, 0]
    assert_identical(coordinator, story, 3, STEPS)
