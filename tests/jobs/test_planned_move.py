from __future__ import annotations

from datetime import timedelta

import pytest

from agent import protocol
from jobs.models import Incident, Migration, Move, Worker
from jobs.reconcile import reconcile_all
from jobs.states import (
    CauseClass,
    IncidentState,
    JobState,
    MigrationState,
    Verdict,
    WorkerState,
)
from nodes.models import Finding, Node
from nodes.paces import Pace
from nodes.policies import PaceRule
from nodes.services import node_step, paces_found
from nodes.states import NodeState
from yoco_platform.core import clock

from .situations import at
from .world import World

pytestmark = pytest.mark.django_db


def heat(world: World, node_id: int) -> None:
    """A finding says that the node may fail, and the rule has made it suspect."""
    node = Node.objects.get(pk=node_id)
    now = clock.now()
    Finding.objects.create(
        node=node,
        boot_id=node.boot_id,
        component="gpu",
        entity="gpu-0",
        check_name="sustained_heat",
        severity="critical",
        evidence=["gpu-0 at 96 °C"],
        action="migrate",
        dedupe_key="sustained_heat:gpu-0",
        first_seen_at=now - timedelta(seconds=1),
        last_seen_at=now,
    )
    node_step(node=node, to=NodeState.SUSPECT, reason="hot", actor="test", rule="sustained_heat")


def paused(world: World, job: object, ranks: tuple[int, ...] = (0, 1, 2)) -> None:
    for rank in ranks:
        world.block(job, rank, at(186, prepared=186), "paused")  # type: ignore[arg-type]


def test_a_rank_leaves_a_hot_node_while_it_lives(world: World) -> None:
    job = world.trained()
    hot = world.rank(job, 1)
    heat(world, hot.node_id)
    reconcile_all()
    asked = {a.node.pk for a in world.agents if a.take(protocol.PauseOrder)}
    assert asked == {worker.node_id for worker in world.ranks(job)}
    assert Migration.objects.get().state == MigrationState.PAUSING
    paused(world, job)
    move = Move.objects.get()
    incident = world.heal(job)

    assert (move.source, move.finish, move.from_worker_id) == ("live", "none", hot.pk)
    assert incident.predicted
    assert (incident.verdict, incident.cause_class) == (Verdict.COVERED, CauseClass.DEVICE)
    assert incident.evidence["resume_at"] == 186
    assert job.state == JobState.RUNNING
    assert world.rank(job, 1).node_id != hot.node_id


def test_what_only_observes_predicts_nothing_and_tells_nobody_of_another_job(world: World) -> None:
    job = world.trained()
    hot = world.rank(job, 1)
    slow = Pace(1, 150.0, 100.0, 0.667, "slow")
    # Of another customer's job and of this very rank, both found before it became hot.
    for job_id in (job.pk + 1, job.pk):
        paces_found(job_id=job_id, paces=[(hot.node_id, slow)], rule=PaceRule())
    Finding.objects.update(first_seen_at=clock.now() - timedelta(hours=1))
    heat(world, hot.node_id)
    reconcile_all()
    incident = Incident.objects.get()

    name = hot.node.name
    assert incident.summary == f"rank 1 leaves {name}, which is suspect: gpu-0 at 96 °C"
    assert (incident.cause_class, incident.ranks) == (CauseClass.DEVICE, [1])


def test_the_worker_that_was_left_is_retired_and_ended(world: World) -> None:
    job = world.trained()
    hot = world.rank(job, 1)
    heat(world, hot.node_id)
    reconcile_all()
    paused(world, job)
    orders = world.regroup(job)
    kinds = [type(role).__name__ for role in orders[hot.node_id].roles]
    assert kinds == ["Serve", "Retire"]
    world.transfer(job, orders)
    hot.refresh_from_db()
    assert hot.state == WorkerState.BLOCKED
    world.rejoin_and_commit(job)
    agent = world.agent_of(hot)
    released, stopped = agent.take(protocol.ReleaseOrder), agent.take(protocol.StopOrder)
    hot.refresh_from_db()

    assert [body.ranks for body in released] == [[1]]
    assert [body.worker_ids for body in stopped] == [[str(hot.pk)]]
    assert hot.state == WorkerState.EXITED


def test_a_drain_moves_its_rank_without_an_incident(world: World) -> None:
    job = world.trained()
    moving = world.rank(job, 0)
    node = Node.objects.get(pk=moving.node_id)
    node_step(node=node, to=NodeState.DRAINING, reason="maintenance", actor="olga")
    reconcile_all()
    paused(world, job)
    world.transfer(job, world.regroup(job))
    world.rejoin_and_commit(job)
    reconcile_all()
    job.refresh_from_db()
    node.refresh_from_db()

    assert not Incident.objects.exists()
    assert Migration.objects.get().state == MigrationState.DONE
    assert world.rank(job, 0).node_id != moving.node_id
    assert node.state == NodeState.CORDONED


def test_nothing_moves_away_without_a_warm_standby(world: World) -> None:
    job = world.trained()
    standby = Worker.objects.get(job=job, rank__isnull=True)
    world.agent_of(standby).report(
        protocol.RankExited(
            job_id=str(job.pk), attempt=1, generation=1, worker_id=str(standby.pk), rank=None,
            exit_code=1, signal=None, position=None, custody="none",
        )
    )  # fmt: skip
    heat(world, world.rank(job, 1).node_id)
    reconcile_all()

    assert not Migration.objects.exists()
    assert job.state == JobState.RUNNING


def test_a_node_that_is_only_silent_is_not_left(world: World) -> None:
    job = world.trained()
    node = Node.objects.get(pk=world.rank(job, 1).node_id)
    node_step(node=node, to=NodeState.SUSPECT, reason="silent", actor="test", rule="silence")
    reconcile_all()

    assert not Migration.objects.exists()


def test_a_kill_while_pausing_is_healed_by_the_same_migration(world: World) -> None:
    job = world.trained()
    heat(world, world.rank(job, 1).node_id)
    reconcile_all()
    killed = world.kill(job, 2, at(185))
    for rank in (0, 1):
        world.block(job, rank, at(185))
    move = Move.objects.get()
    incident = world.heal(job)

    assert Migration.objects.count() == 1
    assert (move.rank, move.source, move.from_worker_id) == (2, "custody", killed.pk)
    assert incident.verdict == Verdict.COVERED
    assert incident.ranks == [1, 2]


def test_after_a_failed_target_the_live_source_goes_on_where_it_is(world: World) -> None:
    job = world.trained()
    hot = world.rank(job, 1)
    heat(world, hot.node_id)
    reconcile_all()
    paused(world, job)
    target = world.rank(job, 1)
    migration = Migration.objects.get()
    world.regroup(job)
    world.agent_of(target).report(
        protocol.MigrationFailed(
            job_id=str(job.pk), attempt=1, generation=2, worker_id=str(target.pk), rank=1,
            migration_id=str(migration.pk), code="digest_mismatch", message="bytes differ",
        )
    )  # fmt: skip
    migration.refresh_from_db()
    assert migration.state == MigrationState.FAILED
    assert Incident.objects.get().state == IncidentState.OPEN
    for rank in (0, 2):
        world.block(job, rank, at(186, prepared=186))
    again = Migration.objects.latest("pk")
    assert not again.moves.exists()
    world.rejoin_and_commit(job)
    job.refresh_from_db()

    assert job.generation == 3
    assert world.rank(job, 1).pk == hot.pk
    assert job.state == JobState.RUNNING
    target.refresh_from_db()
    assert target.state == WorkerState.EXITED
