"""What a job could lose right now, in words a person can act on."""

from __future__ import annotations

import pytest

from jobs.models import Incident, Job, Migration, Worker
from jobs.reconcile import reconcile_all
from jobs.states import IncidentState, JobState, ProtectionState, Verdict
from nodes.models import Node
from nodes.services import node_step
from nodes.states import NodeState

from .situations import at
from .world import World

pytestmark = pytest.mark.django_db


def test_ranks_on_several_nodes_with_replicas_survive_the_loss_of_a_node(world: World) -> None:
    job = world.trained()

    assert job.protection == ProtectionState.PROTECTED
    assert "every rank a buddy on another node" in job.protection_reason
    assert "not covered" not in job.protection_reason


def test_ranks_on_one_node_are_protected_against_the_loss_of_processes_only(db: None) -> None:
    job = World(num_nodes=2, gpus=2).trained(world_size=2)

    assert job.protection == ProtectionState.PROTECTED
    assert job.protection_reason.startswith("against the loss of processes; ")
    assert "no other node holds the shard of rank 0, 1" in job.protection_reason
    assert "rank 0, 1 has no buddy on another node" in job.protection_reason


def test_a_rank_without_a_buddy_is_named(db: None) -> None:
    world = World(num_nodes=2, gpus=2)
    world.agents.append(world.add(2, gpus=1))
    world.by_node[world.agents[-1].node.pk] = world.agents[-1]
    job = world.trained(world_size=3)
    nodes = [worker.node_id for worker in world.ranks(job)]

    assert sorted(nodes.count(node) for node in set(nodes)) == [1, 2]
    assert "rank 1 has no buddy on another node" in job.protection_reason


def test_redundancy_shadow_keeps_no_copies_elsewhere(world: World) -> None:
    job = world.trained(joined={"redundancy": "shadow"})

    assert job.protection_reason.startswith("against the loss of processes; ")
    assert "under redundancy shadow rank 0, 1, 2 has no buddy" in job.protection_reason
    assert job.protection_reason.endswith("so the loss of its whole node is not covered")


def test_redundancy_buddy_covers_nodes_once_the_copies_are_made(world: World) -> None:
    alone = {"redundancy": "buddy", "replica_group": []}
    job = world.trained(joined=alone)

    assert job.protection == ProtectionState.PROTECTED
    assert job.protection_reason == "1 warm standby; every rank is kept on another node"
    Job.objects.update(committed_step=1)
    reconcile_all()
    job.refresh_from_db()
    assert job.protection == ProtectionState.DEGRADED
    assert job.protection_reason == "the copies on other nodes are made with the second step"


# --- Numerics ---------------------------------------------------------------------------------------


def test_a_standby_of_mixed_ranks_protects_those_it_computes_like(world: World) -> None:
    job = world.trained()
    Worker.objects.filter(pk=world.rank(job, 1).pk).update(fingerprint="avx2")
    reconcile_all()
    job.refresh_from_db()

    assert job.protection == ProtectionState.DEGRADED
    assert job.protection_reason == "no warm standby has the numerics of rank 1"


def test_a_lost_rank_of_mixed_ranks_waits_for_its_own_numerics(world: World) -> None:
    job = world.trained()
    Worker.objects.filter(pk=world.rank(job, 1).pk).update(fingerprint="avx2")
    world.kill(job, 1, at(184))
    for rank in (0, 2):
        world.block(job, rank, at(184))

    assert not Migration.objects.exists()
    assert "its numerics differ" in Incident.objects.get().waiting_for


# --- After a move that is not proved ----------------------------------------------------------------


def disagree(world: World, job: Job) -> None:
    """Rank 2 is healed, and holds other bytes than the ranks it replicates."""
    world.kill(job, 2, at(184))
    for rank in (0, 1):
        world.block(job, rank, at(184))
    world.transfer(job, world.regroup(job))
    world.rejoin_and_commit(job, replicas={2: "other"})
    world.launch(job)
    reconcile_all()
    job.refresh_from_db()


def test_a_job_whose_replicas_disagree_is_degraded_and_stays_so(world: World) -> None:
    job = world.trained()
    disagree(world, job)
    incident = Incident.objects.get()

    assert (job.state, job.protection) == (JobState.RUNNING, ProtectionState.DEGRADED)
    assert job.protection_reason == (
        "since generation 2 not proved to be whole: ranks [0, 1, 2] hold different digests"
    )
    assert (incident.verdict, incident.protected_again_at) == (Verdict.MISSED, None)
    reconcile_all()
    job.refresh_from_db()
    assert job.protection == ProtectionState.DEGRADED


def test_a_job_is_protected_again_when_its_replicas_agree_again(world: World) -> None:
    job = world.trained()
    disagree(world, job)
    world.kill(job, 2, at(185))
    for rank in (0, 1):
        world.block(job, rank, at(185))
    world.heal(job)
    world.launch(job)
    reconcile_all()
    job.refresh_from_db()

    assert job.protection == ProtectionState.PROTECTED
    assert all(incident.protected_again_at for incident in Incident.objects.all())


def drained(world: World, job: Job, replicas: dict[int, str]) -> None:
    """A planned move of rank 0, to empty its node."""
    node = Node.objects.get(pk=world.rank(job, 0).node_id)
    node_step(node=node, to=NodeState.DRAINING, reason="maintenance", actor="olga")
    reconcile_all()
    for rank in (0, 1, 2):
        world.block(job, rank, at(186, prepared=186), "paused")
    world.transfer(job, world.regroup(job))
    world.rejoin_and_commit(job, replicas=replicas)
    job.refresh_from_db()


def test_a_maintenance_that_is_not_proved_opens_an_incident_and_ends_it_with_the_proof(
    world: World,
) -> None:
    job = world.trained()
    left = world.rank(job, 0)
    drained(world, job, {0: "other"})
    incident = Incident.objects.get()

    assert incident.state == IncidentState.RESOLVED
    assert incident.evidence["outcome"] == Verdict.MISSED
    assert incident.evidence["replicas_agree"]["holds"] is False
    assert (incident.generation, incident.step, incident.lost_steps) == (1, 186, 0)
    assert (incident.ranks, incident.node_names) == ([0], [left.node.name])
    assert "a planned move was not proved" in incident.summary
    assert Migration.objects.get().incident_id == incident.pk
    assert (job.state, job.protection) == (JobState.RUNNING, ProtectionState.DEGRADED)
    assert "hold different digests" in job.protection_reason


def test_a_maintenance_that_is_proved_is_no_incident(world: World) -> None:
    job = world.trained()
    drained(world, job, {})

    assert not Incident.objects.exists()
