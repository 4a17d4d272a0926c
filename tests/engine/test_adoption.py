"""Every rank is adopted, one after the other, by standbys that were set up as one and the same rank; then
the job saves with torch.distributed.checkpoint: a mesh with its old coordinate would save the wrong shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from .conftest import Twin, assert_identical
from .harness import Coordinator

Job = Callable[..., Coordinator]
STEPS = 9
COMMON = {"JOB_STEPS": str(STEPS), "JOB_WIDTH": "256"}


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{index}]")
    else:
        yield name, value


def reloaded(folder: Path) -> dict[str, Any]:
    """The whole checkpoint, unsharded, by name."""
    dcp_to_torch_save(folder, folder / "whole.pt")
    return dict(leaves(torch.load(folder / "whole.pt", weights_only=False)))


def differing(mine: dict[str, Any], theirs: dict[str, Any]) -> set[str]:
    assert mine.keys() == theirs.keys()
    return {
        name
        for name, value in mine.items()
        if not (
            torch.equal(value, theirs[name])
            if isinstance(value, torch.Tensor)
            else value == theirs[name]
        )
    }


@pytest.mark.parametrize(
    ("kind", "ranks", "provisional"),
    [
        *[(kind, 3, provisional) for kind in ("ddp", "fsdp2") for provisional in range(3)],
        *[("hsdp", 4, provisional) for provisional in range(4)],
    ],
)
def test_every_rank_is_adopted_and_what_is_saved_then_equals_the_twins(
    job: Job, twin: Twin, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    kind: str, ranks: int, provisional: int,
) -> None:  # fmt: skip
    settings = {"JOB_KIND": kind, **COMMON}
    beside = tmp_path_factory.getbasetemp() / f"twin-{kind}"
    unbroken = twin(ranks, JOB_DCP=str(beside), **settings)
    kills = ",".join(f"{rank}:{5 + rank}:forward:{rank}" for rank in range(ranks))
    options = {"provisional": provisional, "standbys": ranks}
    saved = tmp_path / "saved"
    coordinator = job(ranks, options=options, JOB_KILL=kills, JOB_DCP=str(saved), **settings)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 120)
    coordinator.run((saved / ".metadata").exists, 60)
    assert [rank for rank, _source, _finish in coordinator.moved] == list(range(ranks))
    assert_identical(coordinator, unbroken, ranks, STEPS)
    mine, theirs = reloaded(saved), reloaded(beside)
    assert any(isinstance(value, torch.Tensor) and value.numel() > 1000 for value in mine.values())
    assert differing(mine, theirs) == set()
    name = next(name for name, value in mine.items() if isinstance(value, torch.Tensor))
    assert differing(mine, {**theirs, name: theirs[name] + 1}) == {name}
