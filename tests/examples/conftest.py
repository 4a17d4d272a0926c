"""Examples as jobs of the engine's coordinator, and their unbroken twins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.proven import proven

from ..engine.harness import Coordinator, Hatchery, Story, read_story, run_twin
from ..engine.killing import UNHEARD

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("wrapped_example.py")
PRELOAD = (
    "numpy", "torch.distributed.checkpoint.state_dict", "transformers.models.gpt_oss.modeling_gpt_oss",
    "transformers.models.gpt2.modeling_gpt2", "transformers.trainer", "accelerate",
)  # fmt: skip
FRAMEWORKS = {
    "hf_accelerate.py": "Accelerate",
    "hf_trainer.py": "Trainer of transformers",
    "gpt_oss.py": "PyTorch, model of transformers",
}


@dataclass(frozen=True)
class Unbroken:
    """What an example did without a failure, and the folder it ran in."""

    story: Story
    folder: Path


Twin = Callable[[int, str, str], Unbroken]


def environment(example: str, arguments: str) -> dict[str, str]:
    return {
        "EXAMPLE": str(ROOT / "examples" / f"{example}.py"),
        "EXAMPLE_ARGUMENTS": arguments,
        "YOCO_DIGEST_EVERY": "1",
    }


@pytest.fixture(scope="session")
def example_hatchery() -> Iterator[Hatchery]:
    started = Hatchery(PRELOAD)
    yield started
    started.close()


@pytest.fixture(scope="session")
def twin(example_hatchery: Hatchery, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    """An example on plain gloo, without agents, run once for each set of arguments."""
    known: dict[tuple[int, str, str], Unbroken] = {}

    def unbroken(ranks: int, example: str, arguments: str) -> Unbroken:
        key = (ranks, example, arguments)
        if key not in known:
            folder = tmp_path_factory.mktemp("twin")
            story = run_twin(
                example_hatchery, folder, SCRIPT, ranks=ranks,
                environment=environment(example, arguments),
            )  # fmt: skip
            known[key] = Unbroken(story, folder)
        return known[key]

    return unbroken


@pytest.fixture
def job(example_hatchery: Hatchery, tmp_path: Path) -> Iterator[Callable[..., Coordinator]]:
    """Start an example with one standby; whatever is left of it ends with the test."""
    made: list[Coordinator] = []

    def start(ranks: int, example: str, arguments: str, kill: str, **changed: str) -> Coordinator:
        coordinator = Coordinator(
            example_hatchery, tmp_path, SCRIPT, ranks=ranks,
            environment={**environment(example, arguments), "JOB_KILL": kill, **changed},
        )  # fmt: skip
        made.append(coordinator)
        return coordinator

    yield start
    for coordinator in made:
        coordinator.close()


def assert_equal(coordinator: Coordinator, unbroken: Unbroken, ranks: int, steps: int) -> None:
    """Every digest and every link of the trail of every rank, at every step."""
    assert not [worker.log for worker in coordinator.workers if UNHEARD in worker.log]
    story = read_story(coordinator.file)
    expected = {(rank, step) for rank in range(ranks) for step in range(1, steps + 1)}
    assert set(unbroken.story.digests) == expected
    assert story == unbroken.story
    joined = [worker.joined for worker in coordinator.workers if worker.joined is not None]
    proven(
        framework=FRAMEWORKS.get(coordinator.environment["EXAMPLE"].split("/")[-1], "PyTorch"),
        parallelism=joined[0].parallelism, ranks=ranks, through="engine",
        sources=[source for _rank, source, _finish in coordinator.moved],
    )  # fmt: skip


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """What two checkpoints hold, tensor by tensor."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key, value in theirs.items():
            assert_same(ours[key], value, f"{where}.{key}")
    elif isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs), where
    else:
        assert ours == theirs, where
