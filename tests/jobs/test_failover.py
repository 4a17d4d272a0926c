"""One failure from end to end, over the agents' routes, on a real database."""

from __future__ import annotations

import msgspec
import pytest

from agent import protocol
from jobs.models import (
    AgentEvent,
    Generation,
    Incident,
    Job,
    Migration,
    Move,
    Order,
    Stage,
    Worker,
)
from jobs.services.orders import orders_expire
from jobs.states import (
    CauseClass,
    IncidentState,
    JobState,
    MigrationState,
    ProtectionState,
    StageName,
    Verdict,
    WorkerState,
)

from .clockwork import Clockwork
from .situations import at
from .world import Agent, World

pytestmark = pytest.mark.django_db


def test_a_job_is_started_with_its_standby_and_becomes_protected(world: World) -> None:
    job = world.trained()

    assert job.state == JobState.RUNNING
    assert (job.generation, job.committed_step, job.parallelism) == (1, 184, "ddp")
    assert job.protection == ProtectionState.PROTECTED
    assert Worker.objects.filter(job=job, state=WorkerState.STANDBY).count() == 1
    assert len({worker.node_id for worker in Worker.objects.filter(job=job)}) == 4


def test_a_killed_rank_is_healed_from_custody_and_covered(world: World) -> None:
    job = world.trained()
    standby = Worker.objects.get(job=job, rank__isnull=True)
    killed = world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    incident = world.heal(job)

    assert (incident.state, incident.verdict) == (IncidentState.RESOLVED, Verdict.COVERED)
    assert (incident.lost_steps, incident.pause_ms) == (0, 80.0)
    assert incident.cause_class == CauseClass.OPERATING_SYSTEM
    assert incident.evidence["cause"]["row"] == "signal_from_outside"
    assert incident.ranks == [2]
    assert job.state == JobState.RUNNING
    assert (job.generation, job.committed_step) == (2, 185)
    assert world.rank(job, 2).pk == standby.pk
    move = Move.objects.get()
    assert (move.source, move.finish, move.from_worker_id) == ("custody", "none", killed.pk)


def test_the_trail_goes_on_from_the_heads_that_agents_read_before_the_move(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    assert Migration.objects.get().trails == {str(rank): [184, "t184"] for rank in range(3)}
    incident = world.heal(job)

    level = incident.evidence["continuity_verified"]
    assert level["holds"] is True
    assert "3 of them with a trail head known before" in level["words"]
    assert {c["known_trail_head"] for c in incident.evidence["commits"]} == {"t184"}


def test_a_trail_that_goes_on_from_another_head_is_missed(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184, trail_head="another"))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    incident = world.heal(job)

    assert incident.verdict == Verdict.MISSED
    assert incident.evidence["continuity_verified"]["holds"] is False
    assert "rank 2's trail is not the one known before at step 184" in incident.verdict_reason


def test_a_failed_target_bears_no_witness_to_its_own_copy(world: World) -> None:
    job = world.trained(standbys=2, world_size=2)
    world.kill(job, 1, at(183, prepared=184, applying=184, applied=184))
    world.block(job, 0, at(184))
    world.transfer(job, world.regroup(job))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    first, second = Migration.objects.order_by("pk")

    assert first.trails == second.trails == {"0": [184, "t184"]}


def test_the_orders_of_a_failover_say_what_each_agent_does(world: World) -> None:
    job = world.trained()
    killed = world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    orders = world.regroup(job)
    roles = {node: [type(role).__name__ for role in body.roles] for node, body in orders.items()}
    standby = world.rank(job, 2)

    assert roles[killed.node_id] == ["Serve"]
    assert roles[standby.node_id] == ["Adopt"]
    assert sorted(map(len, roles.values())) == [1, 1, 1, 1]
    assert {body.resume_at for body in orders.values()} == {184}
    assert len({body.store.prefix for body in orders.values()}) == 1
    serve = orders[killed.node_id].roles[0]
    adopt = orders[standby.node_id].roles[0]
    assert isinstance(serve, protocol.Serve)
    assert isinstance(adopt, protocol.Adopt)
    assert (serve.holder, serve.rank, serve.what) == ("custody", 2, "all")
    assert adopt.fetches[0].stream_secret == serve.stream_secret
    assert adopt.fetches[0].stream_id == serve.stream_id
    assert serve.target_node == str(standby.node_id)


def test_survivors_are_interrupted_as_soon_as_a_rank_has_exited(world: World) -> None:
    job = world.trained()
    killed = world.kill(job, 0, at(184))
    told = {a.node.pk for a in world.agents if a.take(protocol.InterruptOrder)}
    survivors = {worker.node_id for worker in world.ranks(job)} - {killed.node_id}

    assert told == survivors
    assert Incident.objects.get().state == IncidentState.OPEN
    assert not Migration.objects.exists()


def test_every_stage_has_a_beginning_and_an_end_in_order(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.heal(job)
    stages = {stage.name: stage for stage in Stage.objects.all()}

    assert list(stages) and set(stages) == set(StageName.values)
    for stage in stages.values():
        assert stage.ended_at is not None
        assert stage.ended_at >= stage.began_at
    began = [stages[name].began_at for name in StageName.values]
    assert began == sorted(began)


def test_an_agent_that_was_away_for_an_hour_still_lets_go_of_what_it_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.trained()
    killed = world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.heal(job)
    killed.refresh_from_db()
    assert not killed.holds_state
    Clockwork(monkeypatch).pass_on(3600)
    orders_expire()
    assert [body.ranks for body in world.agent_of(killed).take(protocol.ReleaseOrder)] == [[2]]


def test_what_was_kept_is_released_and_the_freed_slot_warms_a_standby(world: World) -> None:
    job = world.trained()
    killed = world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.heal(job)
    agent = world.agent_of(killed)
    released = agent.take(protocol.ReleaseOrder)
    assert job.protection == ProtectionState.DEGRADED
    world.launch(job)
    job.refresh_from_db()
    incident = Incident.objects.get()

    assert [body.ranks for body in released] == [[2]]
    standby = Worker.objects.get(job=job, state=WorkerState.STANDBY)
    assert standby.node_id == killed.node_id
    assert job.protection == ProtectionState.PROTECTED
    assert incident.protected_again_at is not None
    assert incident.resolved_at is not None
    assert incident.protected_again_at >= incident.resolved_at


def lose_node(world: World, clock: Clockwork, job: Job, rank: int) -> tuple[Worker, Agent]:
    """One node says nothing any more; the others stall, are interrupted and stop for good."""
    lost = world.rank(job, rank)
    gone = world.agent_of(lost)
    holder = int(_buddy_map(job)[str(rank)])
    others = [other for other in range(job.world_size) if other != rank]
    for other in others:
        world.block(job, other, at(184), "stalled")
    clock.pass_on(1.0)
    world.beat_all(gone)
    clock.reconcile()
    assert not Incident.objects.exists()
    clock.pass_on(1.5)
    world.beat_all(gone)
    clock.reconcile()
    for other in others:
        agent = world.agent_of(world.rank(job, other))
        assert len(agent.take(protocol.InterruptOrder)) == 1
    assert not Migration.objects.exists()
    for other in others:
        holds = {str(rank): [184, 185]} if other == holder else {}
        world.block(job, other, at(184, holds=holds))
    return lost, gone


def test_a_lost_node_is_judged_after_it_was_rung_and_healed_from_a_replica(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.trained()
    lost, _gone = lose_node(world, Clockwork(monkeypatch), job, 1)
    move = Move.objects.get()
    incident = world.heal(job)

    assert (move.source, move.finish, move.rank) == ("replica", "none", 1)
    assert (incident.verdict, incident.cause_class) == (Verdict.COVERED, CauseClass.NODE)
    level = incident.evidence["continuity_verified"]
    assert level["holds"] is None
    assert "the trail of rank 1 was not compared" in level["words"]
    assert [c["known_trail_head"] for c in incident.evidence["commits"]] == ["t184", "", "t184"]
    lost.refresh_from_db()
    assert lost.state == WorkerState.LOST


@pytest.mark.parametrize(("own", "holds"), [("m176", True), ("another", False)])
def test_a_lost_nodes_trail_is_compared_at_the_mark_its_heartbeats_told(
    world: World, monkeypatch: pytest.MonkeyPatch, own: str, holds: bool
) -> None:
    job = world.trained()
    worker = world.rank(job, 1)
    agent = world.agent_of(worker)
    (status,) = [s for s in agent.statuses if s.worker_id == str(worker.pk)]
    agent.beat(workers=[msgspec.structs.replace(status, mark_step=176, mark_head="m176")])
    lose_node(world, Clockwork(monkeypatch), job, 1)
    world.transfer(job, world.regroup(job))
    world.rejoin_and_commit(job, trail_marks={"160": "m160", "176": own})
    incident = Incident.objects.get()

    assert incident.evidence["continuity_verified"]["holds"] is holds
    assert incident.verdict == (Verdict.COVERED if holds else Verdict.MISSED)
    (row,) = [c for c in incident.evidence["commits"] if c["rank"] == 1]
    assert (row["known_trail_step"], row["known_trail_head"]) == (176, "m176")


def test_a_node_that_comes_back_has_its_stale_rank_ended_and_is_not_believed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.trained()
    lost, gone = lose_node(world, Clockwork(monkeypatch), job, 1)
    world.heal(job)
    before = (job.generation, job.committed_step)
    stale = world.first_commit(job, lost, 999, 998)
    gone.report(*stale)
    stops = gone.take(protocol.StopOrder)
    job.refresh_from_db()

    assert [body.worker_ids for body in stops] == [[str(lost.pk)]]
    assert (job.generation, job.committed_step) == before
    refused = AgentEvent.objects.filter(node=gone.node).latest("pk")
    assert refused.refused_code == "old_generation"


def _buddy_map(job: Job) -> dict[str, str]:
    order = Order.objects.filter(job=job, kind="launch").first()
    assert order is not None
    body = msgspec.json.decode(order.body)
    buddies: dict[str, str] = body["buddies"]
    return buddies


def test_a_generation_is_never_reused(world: World) -> None:
    job = world.trained()
    world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.heal(job)
    prefixes = list(Generation.objects.filter(job=job).values_list("store_prefix", flat=True))

    assert [g.number for g in Generation.objects.filter(job=job)] == [1, 2]
    assert len(set(prefixes)) == 2
    assert Migration.objects.get().state == MigrationState.DONE
