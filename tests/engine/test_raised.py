"""What a script raises is told before its process ends: an exit code alone tells no two failures apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.link import Raised

from .conftest import Twin, assert_identical
from .harness import Coordinator, Worker

Job = Callable[..., Coordinator]
COMMON = {"JOB_KIND": "ddp", "JOB_STEPS": "9"}


MISTAKE = "RuntimeError: Cannot use ReduceOp.BAND with non-integral dtype"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("forward:raise", "ValueError: told to"),
        ("forward:mistake", MISTAKE),
        ("backward:mistake", MISTAKE),
        ("data:mistake", MISTAKE),
    ],
)
def test_a_rank_says_what_it_raised_and_is_healed(
    job: Job, twin: Twin, where: str, words: str
) -> None:
    coordinator = job(3, JOB_HANG=f"1:6:{where}", **COMMON)
    raised: list[tuple[int | None, str]] = []

    def hear(worker: Worker, message: Any) -> None:
        if isinstance(message, Raised):
            raised.append((worker.rank, message.exception))

    coordinator.on_message = hear
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 60)
    assert raised == [(1, words)]
    assert coordinator.moved == [(1, "custody", "none")]
    assert_identical(coordinator, twin(3, **COMMON), 3, 9)
