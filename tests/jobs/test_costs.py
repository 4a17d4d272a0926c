"""What copies cost a step: believed of rank 0, kept with the inventory, put into words for the job's page."""

from __future__ import annotations

import pytest

from agent import protocol
from frontend.pages.jobs import cost_rows
from jobs.models import Job

from .world import World, who

pytestmark = pytest.mark.django_db

COSTS = {
    "prepare_ms": 4.0, "vote_ms": 0.5, "private_bytes": 2_000_000.0, "shadow_bytes": 6_000_000.0,
    "shadow_ms": 1.5, "buddy_bytes": 6_000_000.0, "buddy_ms": 9.0, "buddy_wait_ms": 0.25,
}  # fmt: skip


def report(world: World, job: Job, rank: int, **changed: float) -> None:
    worker = world.rank(job, rank)
    body = protocol.RankCosts(**who(worker), rank=rank, step=3, costs={**COSTS, **changed})
    world.agent_of(worker).report(body)


def test_what_rank_0_measured_is_kept_and_told_and_nothing_else(world: World) -> None:
    job = world.trained(joined={"redundancy": "buddy"})
    assert cost_rows(job) == []
    report(world, job, 1, buddy_ms=99.0)
    report(world, job, 0, unheard_of=1.0)
    job.refresh_from_db()

    assert {key: job.costs[key] for key in COSTS} == COSTS
    assert job.costs["step"] == 3
    assert "unheard_of" not in job.costs
    told = [(part, words.replace("\u00a0", " ")) for part, words in cost_rows(job)]
    assert told == [
        ("On the training thread", "4.0 ms to prepare, 0.5 ms to vote"),
        ("Shadow, on its own node", "6.00 MB copied in 1.5 ms beside the step"),
        ("Buddy, on another node", "6.00 MB copied in 9.0 ms beside the step"),
        ("Wait for the buddy", "0.2 ms at the end of the step"),
        ("Private state, before the vote", "2.00 MB to the buddy"),
    ]
