"""A rank that is slow by itself tells so; those that wait for it take as long for a step and do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..engine.harness import Coordinator

pytestmark = pytest.mark.timeout(240)
SLOW_S = 0.6


@pytest.mark.parametrize("example", ["ddp", "fsdp2"])
def test_only_the_slow_rank_has_the_time_as_its_own(
    job: Callable[..., Coordinator], example: str
) -> None:
    coordinator = job(3, example, "6", "", JOB_SLOW=f"1:{SLOW_S}")
    coordinator.open_gate()
    coordinator.run(coordinator.finished, 90)
    # Each step is reported here, and the first one to be measured has waited at the test's gate.
    own = {rank: worker.costs[-1]["own_ms"] for rank, worker in coordinator.ranks.items()}
    assert own[1] >= SLOW_S * 1000.0
    assert max(own[0], own[2]) < SLOW_S * 1000.0 / 2
