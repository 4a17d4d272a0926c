"""Each example loses a rank and ends equal to an unbroken run of the same script, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..engine.harness import Coordinator
from .conftest import Twin, assert_equal

pytestmark = pytest.mark.timeout(240)
Job = Callable[..., Coordinator]
# (example, ranks, arguments, rank:step:point)
LOST = [
    ("hsdp", 4, "6", "3:5:forward"),
    ("plain", 3, "7", "1:5:forward"),
    ("ddp", 3, "7", "2:5:tail"),
    ("fsdp2", 3, "7", "2:5:inside"),
    ("accumulation", 3, "6", "1:5:forward"),
    ("gpt_oss", 3, "5 ddp", "0:4:backward"),
    ("gpt_oss", 3, "5 fsdp2", "2:4:forward"),
    ("hf_accelerate", 3, "14", "2:12:tail"),
]


@pytest.mark.parametrize(
    ("example", "ranks", "arguments", "kill"), LOST, ids=lambda v: str(v).replace(":", "-")
)
def test_an_example_that_loses_a_rank_equals_an_unbroken_run(
    job: Job, twin: Twin, example: str, ranks: int, arguments: str, kill: str
) -> None:
    coordinator = job(ranks, example, arguments, kill)
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 90)
    assert [rank for rank, _source, _finish in coordinator.moved] == [int(kill[0])]
    assert_equal(coordinator, twin(ranks, example, arguments), ranks, int(arguments.split()[0]))
