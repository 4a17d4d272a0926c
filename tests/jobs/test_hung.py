"""Ranks that hang: who is ended for it, what is kept of it, and that nobody knows yet what kept it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from agent import protocol
from jobs.models import Incident, Job, Order, Worker
from jobs.states import JobState, Verdict

from .situations import at
from .world import World

pytestmark = pytest.mark.django_db

HUNG = "hung: it did not stop within 60 s of being interrupted"


def test_a_rank_that_our_own_agent_killed_waits_for_a_person(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184), detail=HUNG)
    for rank in (0, 1):
        world.block(job, rank, at(184))
    incident = world.heal(job)

    assert job.state == JobState.RUNNING
    assert (incident.cause_class, incident.verdict) == (None, Verdict.AWAITING)
    assert incident.evidence["cause"]["row"] == "hung"
    assert incident.evidence["outcome"] == Verdict.COVERED


def standing(issued: int, pending: int, **changed: Any) -> protocol.Standing:
    """Where a rank stands that has not moved for longer than ``stall_s``."""
    fields: dict[str, Any] = {"phase": "forward", "step": 184, "still_s": 4.0, "beat_s": 0.3}
    group = protocol.GroupStanding(key=1, issued=issued, pending=pending)
    return protocol.Standing(groups=[group], usual_s=0.04, **{**fields, **changed})


QUICK = {"compute_s": 3.5}
WAITS = standing(7, 7)
BEHIND = standing(6, 0)


def stands(world: World, job: Job, **standings: protocol.Standing | None) -> None:
    """Every agent's heartbeat says where its ranks stand: rank0=…, rank1=…, as named."""
    for worker in world.ranks(job):
        agent = world.agent_of(worker)
        said = [s for s in agent.statuses if s.worker_id != str(worker.pk)]
        (mine,) = [s for s in agent.statuses if s.worker_id == str(worker.pk)]
        agent.statuses = [
            *said, msgspec.structs.replace(mine, standing=standings.get(f"rank{worker.rank}")),
        ]  # fmt: skip
        agent.beat()


def ordered_to_end(world: World, job: Job) -> list[protocol.EndHungOrder]:
    return [body for agent in world.agents for body in agent.take(protocol.EndHungOrder)]


def test_the_rank_that_all_others_wait_for_is_ended_with_its_stacks_and_healed(
    world: World,
) -> None:
    job = world.trained(limits=QUICK)
    stands(world, job, rank0=WAITS, rank1=WAITS, rank2=BEHIND)
    (order,) = ordered_to_end(world, job)
    hung = world.rank(job, 2)
    assert order.worker_id == str(hung.pk)
    assert order.still_s >= 4.0
    assert not Incident.objects.exists()

    world.kill(
        job, 2, at(184), detail=f"hung: {order.reason}", stood_s=4.2, stacks="py-spy dump\ntrain"
    )
    for rank in (0, 1):
        world.block(job, rank, at(184))
    incident = world.heal(job)

    assert (incident.lost_steps, incident.evidence["outcome"]) == (0, Verdict.COVERED)
    assert incident.evidence["cause"]["row"] == "hung"
    (stacks,) = incident.evidence["stacks"]
    assert (stacks["rank"], stacks["node"]) == (2, hung.node.name)
    assert stacks["text"] == "py-spy dump\ntrain"
    moved = f"has not moved for {order.still_s:.1f} s in forward after step 184"
    assert moved in incident.summary
    assert incident.observed_at - incident.occurred_at > timedelta(seconds=4)


def test_while_one_rank_moves_nobody_is_ended(world: World) -> None:
    job = world.trained(limits=QUICK)
    stands(world, job, rank0=WAITS, rank1=WAITS, rank2=BEHIND)
    ordered_to_end(world, job)
    stands(world, job, rank0=WAITS, rank1=WAITS, rank2=None)

    assert Worker.objects.get(pk=world.rank(job, 2).pk).standing is None
    assert ordered_to_end(world, job) == []
    assert not Incident.objects.exists()


def test_one_order_is_enough_while_it_is_followed(world: World) -> None:
    job = world.trained(limits=QUICK)
    for _ in range(3):
        stands(world, job, rank0=WAITS, rank1=WAITS, rank2=BEHIND)

    assert Order.objects.filter(job=job, kind="end_hung").count() == 1


def test_a_standing_of_an_older_generation_says_nothing(world: World) -> None:
    job = world.trained(limits=QUICK)
    for agent in world.agents:
        agent.statuses = [msgspec.structs.replace(s, generation=0) for s in agent.statuses]
    stands(world, job, rank0=WAITS, rank1=WAITS, rank2=BEHIND)

    assert ordered_to_end(world, job) == []
    assert not Worker.objects.filter(job=job, standing_at__isnull=False).exists()


def test_all_inside_the_same_collective_get_a_new_generation_and_nobody_is_ended(
    world: World,
) -> None:
    job = world.trained(limits=QUICK)
    before = [worker.pk for worker in world.ranks(job)]
    inside = standing(7, 7, still_s=21.0)
    stands(world, job, rank0=inside, rank1=inside, rank2=inside)
    incident = Incident.objects.get()
    assert incident.evidence["cause"]["row"] == "nobody_lost"
    for rank in (0, 1, 2):
        world.block(job, rank, at(184))
    healed = world.heal(job)

    assert [worker.pk for worker in world.ranks(job)] == before
    assert not Order.objects.filter(job=job, kind__in=("end_hung", "stop")).exists()
    assert (healed.lost_steps, job.generation) == (0, 2)
