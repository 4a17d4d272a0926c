"""transformers' Trainer: evaluation, early stopping and checkpoints are right after a loss at any point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ..engine.harness import Coordinator
from .conftest import Twin, assert_equal, assert_same

pytestmark = pytest.mark.timeout(240)
Job = Callable[..., Coordinator]
STEPS = 14
PER_EPOCH = 10
POINTS = [
    "2:4:evaluation",
    "0:6:tail",
    f"1:{PER_EPOCH + 1}:data",
    f"2:{PER_EPOCH + 2}:inside",
]


@pytest.mark.parametrize("kill", POINTS, ids=lambda kill: kill.replace(":", "-"))
def test_a_trainer_that_loses_a_rank_equals_an_unbroken_one(
    job: Job, twin: Twin, tmp_path: Path, kill: str
) -> None:
    unbroken = twin(3, "hf_trainer", f"{STEPS}")
    coordinator = job(3, "hf_trainer", f"{STEPS}", kill)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 90)
    assert [rank for rank, _source, _finish in coordinator.moved] == [int(kill[0])]
    assert_equal(coordinator, unbroken, 3, STEPS)
    folder = unbroken.folder / "checkpoints"
    names = sorted(path.name for path in folder.iterdir())
    assert "checkpoint-12" in names
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == names
    for name in names:
        ours = load_file(tmp_path / "checkpoints" / name / "model.safetensors")
        assert_same(ours, load_file(folder / name / "model.safetensors"), name)
