"""Evaluation, metrics, checkpoints, early stopping and counters are right after a loss at any point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ..engine.harness import Coordinator
from .conftest import Twin, assert_equal, assert_same

pytestmark = pytest.mark.timeout(240)
Job = Callable[..., Coordinator]
STOPPED_AT = 12
"""where the unbroken run stops early, of 30 steps"""
POINTS = [
    "1:4:evaluation",
    "0:4:metrics",
    "2:7:saving",
    "0:7:saved",
    "1:6:tail",
]


@pytest.mark.parametrize("kill", POINTS, ids=lambda kill: kill.replace(":", "-"))
def test_what_is_done_between_two_steps_is_done_again_after_a_loss(
    job: Job, twin: Twin, tmp_path: Path, kill: str
) -> None:
    unbroken = twin(3, "evaluation", "30")
    coordinator = job(3, "evaluation", "30", kill)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 90)
    assert [rank for rank, _source, _finish in coordinator.moved] == [int(kill[0])]
    assert_equal(coordinator, unbroken, 3, STOPPED_AT)
    folder = unbroken.folder / "checkpoints"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["step-12", "step-3", "step-6", "step-9"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == names
    for name in names:
        ours = loaded(tmp_path / "checkpoints" / name, tmp_path / "ours.pt")
        assert_same(ours, loaded(folder / name, tmp_path / "theirs.pt"), name)


def loaded(checkpoint: Path, paper: Path) -> dict[str, Any]:
    dcp_to_torch_save(checkpoint, paper)
    found: dict[str, Any] = torch.load(paper, weights_only=True)
    return found
