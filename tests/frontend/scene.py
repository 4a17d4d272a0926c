"""A small world for the pages: two customers, a fleet, jobs with failovers behind and before them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from jobs import models as jobs
from jobs.states import (
    CauseClass,
    IncidentState,
    JobState,
    MigrationState,
    ProtectionState,
    Source,
    StageName,
    Verdict,
    WorkerState,
)
from nodes import models as nodes
from nodes.states import NodeState
from sla import services as sla
from sla.models import Contract
from sla.terms import TermsFields
from yoco_platform.core import clock
from yoco_platform.core.auth import viewer_of_user
from yoco_platform.core.models import Cluster, Customer, User
from yoco_platform.core.roles import Role

PASSWORD = "correct horse battery staple"
STEP_S = 0.12


def digest(*words: object) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()


@dataclass
class Scene:
    """Everything by name. ``now`` is when it was made."""

    now: datetime
    cluster: Cluster
    acme: Customer
    stranger: Customer
    users: dict[str, User] = field(default_factory=dict)
    nodes: dict[str, nodes.Node] = field(default_factory=dict)
    jobs: dict[str, jobs.Job] = field(default_factory=dict)
    incidents: dict[str, jobs.Incident] = field(default_factory=dict)
    contract: Contract | None = None


def make_scene() -> Scene:
    now = clock.now()
    cluster = Cluster.objects.create(slug="atlas-1", name="atlas-1")
    scene = Scene(
        now=now,
        cluster=cluster,
        acme=Customer.objects.create(slug="acme", name="Acme Models", is_demo=True),
        stranger=Customer.objects.create(slug="other", name="Other Labs"),
    )
    _people(scene)
    _fleet(scene)
    job = make_job(scene, "gpt-small", scene.acme, ranks=["a1", "b1", "c1"], standby="d2")
    run(scene, job, steps=600, failovers=[(200, 0.41, Source.CUSTODY), (410, 0.92, Source.LIVE)])
    other = make_job(scene, "vit-large", scene.stranger, ranks=["a2", "b2", "c2"], standby=None)
    run(scene, other, steps=300, failovers=[])
    begin_failover(scene, other)
    promise(scene)
    return scene


def promise(scene: Scene) -> None:
    """A contract over Acme's jobs, and an entry for each of its ended incidents, by the real services."""
    finance = viewer_of_user(scene.users["finance"])
    today = scene.now.date()
    terms = TermsFields(
        effective_from=today.replace(month=1, day=1), target_numerator=90, target_denominator=100,
        credit_rate_bp=2500, credit_base="first_of_renewal_or_expansion", credit_cap_minor="none",
        credit_expiry_days=365, order_of_use="oldest_first", rounding="half_up", leap_rule="feb_28",
        mechanism="live_migration", predicted_failures_count=False, grouping_window_minutes=10,
        evidence_cutoff_days=30, grace_days=14, minimum_measured_bp=9500, contest_window_days=30,
        exclusion_categories=["customer_cause"], support_matrix_version="2026.1", minimum_spares=1,
    )  # fmt: skip
    scene.contract = sla.contract_create(
        viewer=finance, customer=scene.acme, number="acme-2026",
        first_date=today.replace(month=1, day=1), zone="Europe/Berlin", currency="EUR", terms=terms,
        is_demo=True,
    )  # fmt: skip
    sla.entries_catch_up()


def miss(scene: Scene, job: jobs.Job, at: datetime) -> jobs.Incident:
    """An incident that cost ten steps, with its entry."""
    incident = make_incident(
        scene, job, 1, 500, at, summary="Nodes b1 and c1 lost power within 4 s",
        state=IncidentState.RESOLVED, state_since=at, verdict=Verdict.MISSED,
        cause_class=CauseClass.NODE, verdict_reason="no complete source was left",
        resolved_at=at, lost_steps=10, pause_ms=60_000.0,
        evidence={
            "outcome": "missed",
            "checkpoint": {"committed_step": 500, "saved_step": 490, "loaded_step": 490},
        },
    )  # fmt: skip
    sla.entries_catch_up()
    return incident


def _people(scene: Scene) -> None:
    for role in Role:
        if role in (Role.AGENT, Role.SCHEDULER):
            continue
        customer = scene.acme if role.value.startswith("customer") else None
        scene.users[role.value] = User.objects.create_user(
            role.value, password=PASSWORD, role=role, customer=customer
        )


def make_node(
    scene: Scene, name: str, rack: str, state: str, reason: str, **fields: Any
) -> nodes.Node:
    since = scene.now - timedelta(minutes=fields.pop("minutes", 62))
    node = nodes.Node.objects.create(
        cluster=scene.cluster, name=name, hostname=f"{name}.atlas", pool="cpu", rack=rack,
        failure_domain=f"{rack}-power", state=state, state_since=since, boot_id=digest(name)[:32],
        agent_version="0.1.0", endpoint={"host": "127.0.0.1", "store_port": 1, "data_port": 2},
        inventory_hash=digest("inventory", name), token_hash=digest("token", name),
        last_heard_at=scene.now - timedelta(seconds=fields.pop("silent_s", 1)), **fields,
    )  # fmt: skip
    for index in range(2):
        nodes.Gpu.objects.create(
            node=node, index=index, uuid=f"SIM-{name}-{index}", model="simulated CPU slot",
            memory_bytes=4 * 10**9, simulated=True,
        )  # fmt: skip
    steps = [(NodeState.JOINING, NodeState.TESTING, "enrolled", 200)]
    steps.append((NodeState.TESTING, NodeState.READY, "passed its tests", 190))
    if state != NodeState.READY:
        steps.append((NodeState.READY, NodeState(state), reason, 5))
    for before, after, why, minutes in steps:
        at = scene.now - timedelta(minutes=minutes)
        nodes.NodeTransition.objects.create(
            node=node, from_state=before, to_state=after, reason=why, actor="platform", at=at
        )
    scene.nodes[name] = node
    return node


def _fleet(scene: Scene) -> None:
    for rack in "abc":
        for place in "12":
            readings = [
                {"check": "temperature", "entity": f"gpu:{index}", "outcome": "ok",
                 "value": 61.0 + index, "unit": "celsius", "simulated": True}
                for index in range(2)
            ]  # fmt: skip
            make_node(scene, f"{rack}{place}", f"R00{'abc'.index(rack) + 1}", NodeState.READY, "",
                      is_spare=True, runs_as_root=True, readings=readings)  # fmt: skip
    make_node(scene, "d1", "R004", NodeState.READY, "")
    make_node(scene, "d2", "R004", NodeState.READY, "")
    lost = make_node(
        scene, "e1", "R005", NodeState.LOST, "silent for 31 s", minutes=5, silent_s=331
    )
    hot = make_node(scene, "e2", "R005", NodeState.SUSPECT, "temperature above 90 °C", minutes=5)
    nodes.Finding.objects.create(
        node=hot, boot_id=hot.boot_id, component="gpu", entity="gpu:1", check_name="heat",
        severity="warning", evidence=["GPU 1 at 93 °C for 3 heartbeats, limit 90 °C"],
        action="migrate", simulated=True, dedupe_key="heat:gpu:1", count=7,
        first_seen_at=scene.now - timedelta(minutes=40), last_seen_at=scene.now,
    )  # fmt: skip
    assert lost.state == NodeState.LOST


def make_worker(
    scene: Scene, job: jobs.Job, node: str, rank: int | None, generation: int, state: str
) -> jobs.Worker:
    return jobs.Worker.objects.create(
        job=job, attempt=1, node=scene.nodes[node], gpu_index=0, rank=rank,
        provisional_rank=rank or 0, generation=generation, state=state,
        state_since=scene.now - timedelta(minutes=2), fingerprint="f" * 16,
        replica_group=list(range(job.world_size)) if rank is not None else [],
    )  # fmt: skip


def make_job(
    scene: Scene, name: str, customer: Customer, *, ranks: list[str], standby: str | None
) -> jobs.Job:
    began = scene.now - timedelta(minutes=10)
    job = jobs.Job.objects.create(
        customer=customer, cluster=scene.cluster, name=name, state=JobState.RUNNING,
        state_since=began, protection=ProtectionState.PROTECTED,
        protection_reason="a warm standby and replicas of every shard", world_size=len(ranks),
        pool="cpu", command=["python", "train.py"], working_directory="/srv", run_as="train",
        parallelism="ddp", is_demo=customer.is_demo, submitted_by="operator",
    )  # fmt: skip
    jobs.JobTransition.objects.create(
        job=job, from_state=JobState.STARTING, to_state=JobState.RUNNING,
        reason="all ranks have joined", actor="platform", at=began,
    )  # fmt: skip
    for rank, node in enumerate(ranks):
        make_worker(scene, job, node, rank, 1, WorkerState.RUNNING)
    if standby:
        make_worker(scene, job, standby, None, 1, WorkerState.STANDBY)
    scene.jobs[name] = job
    return job


def run(
    scene: Scene, job: jobs.Job, *, steps: int, failovers: list[tuple[int, float, str]]
) -> None:
    """Points of a run that ended just now, with a finished failover after each step named."""
    length = steps * STEP_S + sum(pause for _, pause, _ in failovers)
    at = scene.now - timedelta(seconds=length)
    generation = 1
    make_generation(scene, job, 1, 0, at)
    left = list(failovers)
    points: list[jobs.Point] = []
    for step in range(1, steps + 1):
        at += timedelta(seconds=STEP_S)
        wobble = math.sin(step * 1.7) + math.sin(step * 0.31)
        point = jobs.Point(
            job=job, attempt=1, generation=generation, step=step, at=at,
            loss=1.9 + 2.4 / (1 + step / 40) + 0.03 * wobble, step_ms=1000 * STEP_S + 6 * wobble,
        )  # fmt: skip
        points.append(point)
        if left and left[0][0] == step:
            _, pause, source = left.pop(0)
            finish_failover(scene, job, generation, step, at, pause, source)
            generation += 1
            at += timedelta(seconds=pause)
    jobs.Point.objects.bulk_create(points)
    job.committed_step, job.generation = steps, generation
    job.save()
    for worker in job.workers.filter(rank__isnull=False):
        worker.position = {"fence": steps, "prepared": steps, "applying": steps, "applied": steps}
        worker.generation = generation
        worker.save()


def make_generation(scene: Scene, job: jobs.Job, number: int, resume_at: int, at: datetime) -> None:
    jobs.Generation.objects.create(
        job=job, attempt=1, number=number, resume_at=resume_at, store_node=scene.nodes["a1"],
        store_prefix=digest(job.pk, number)[:16], store_secret="s", began_at=at,
    )  # fmt: skip


STAGES = (
    (StageName.DETECT, 0.0, 0.02),
    (StageName.DECIDE, 0.02, 0.06),
    (StageName.RESERVE, 0.06, 0.11),
    (StageName.TRANSFER, 0.11, 0.55),
    (StageName.REJOIN, 0.55, 0.80),
    (StageName.VERIFY, 0.80, 1.0),
)


def make_incident(
    scene: Scene, job: jobs.Job, generation: int, step: int, at: datetime, **fields: Any
) -> jobs.Incident:
    observed = at + timedelta(milliseconds=9)
    return jobs.Incident.objects.create(
        job=job, customer=job.customer, cluster=scene.cluster, attempt=1, generation=generation,
        ranks=[1], node_names=["b1"], step=step, occurred_at=at, observed_at=observed,
        is_demo=job.is_demo, **fields,
    )  # fmt: skip


def finish_failover(
    scene: Scene, job: jobs.Job, generation: int, step: int, at: datetime, pause: float, source: str
) -> jobs.Incident:
    """A failure of rank 1 that ended covered (or averted when it was moved alive)."""
    predicted = source == Source.LIVE
    end = at + timedelta(seconds=pause)
    incident = make_incident(
        scene, job, generation, step, at,
        summary="Node b1 was running hot: rank 1 moved before it failed"
        if predicted
        else "Rank 1 on b1 was killed by signal 9",
        predicted=predicted, state=IncidentState.RESOLVED, state_since=end,
        verdict=Verdict.COVERED, cause_class=CauseClass.DEVICE if predicted else CauseClass.OPERATING_SYSTEM,
        verdict_reason=f"step {step + 1} followed step {step} on every rank; nothing was computed again",
        resolved_at=end, protected_again_at=end + timedelta(seconds=4), pause_ms=pause * 1000,
        lost_steps=0, evidence=evidence(job, step),
    )  # fmt: skip
    transition(
        incident, IncidentState.OPEN, IncidentState.RECOVERING, "source and target are known", at
    )
    transition(incident, IncidentState.VERIFYING, IncidentState.RESOLVED, "every level holds", end)
    migration = make_migration(scene, job, incident, generation, step, at, MigrationState.DONE)
    for name, begin, finish in STAGES:
        jobs.Stage.objects.create(
            migration=migration, name=name, began_at=at + timedelta(seconds=begin * pause),
            ended_at=at + timedelta(seconds=finish * pause),
        )  # fmt: skip
    move = make_move(scene, job, migration, source)
    move.transfers = [transferred(job, move, at.timestamp() + 0.12 * pause, 0.4 * pause, source)]
    move.save()
    incident.evidence = {**incident.evidence, "migration_id": migration.pk, "outcome": "covered"}
    incident.save()
    make_generation(scene, job, generation + 1, step, end)
    scene.incidents[f"{job.name}-{generation}"] = incident
    return incident


def evidence(job: jobs.Job, step: int) -> dict[str, Any]:
    ranks = range(job.world_size)
    return {
        "transfer_verified": {"holds": True, "words": "1 stream arrived with the digest it left with"},
        "continuity_verified": {"holds": True, "words": f"step {step + 1} follows step {step} on 3 ranks"},
        "replicas_agree": {"holds": True, "words": "1 group of replicas agrees"},
        "cause": {"row": "signal_from_outside", "words": "ended by SIGKILL from outside"},
        "resume_at": step,
        "commits": [
            {"rank": rank, "step": step + 1, "previous_step": step, "batch_hash": digest("batch", rank),
             "redone_batch_hash": digest("batch", rank), "previous_trail_head": digest("trail", rank),
             "replica_digest": digest("replica"), "pause_ms": 400.0 + rank}
            for rank in ranks
        ],
    }  # fmt: skip


def transition(incident: jobs.Incident, before: str, after: str, reason: str, at: datetime) -> None:
    jobs.IncidentTransition.objects.create(
        incident=incident, from_state=before, to_state=after, reason=reason, at=at
    )


def make_migration(
    scene: Scene,
    job: jobs.Job,
    incident: jobs.Incident,
    generation: int,
    step: int,
    at: datetime,
    state: str,
) -> jobs.Migration:
    migration = jobs.Migration.objects.create(
        job=job, incident=incident, attempt=1, from_generation=generation,
        to_generation=generation + 1, state=state, state_since=at, resume_at=step,
        reason="Rank 1 goes to d2, the warm standby in another failure domain; nobody had begun "
        f"to apply step {step + 1}, so it is computed again with its batch.",
    )  # fmt: skip
    # The column fills itself with now.
    jobs.Migration.objects.filter(pk=migration.pk).update(
        created_at=at + timedelta(milliseconds=20)
    )
    return migration


def make_move(scene: Scene, job: jobs.Job, migration: jobs.Migration, source: str) -> jobs.Move:
    gone = make_worker(scene, job, "b1", 1, 1, WorkerState.EXITED)
    came = job.workers.filter(rank=1).exclude(pk=gone.pk).order_by("created_at").last()
    assert came is not None
    passed = [] if source == Source.LIVE else ["live: the process has ended"]
    return jobs.Move.objects.create(
        migration=migration, rank=1, from_worker=gone, from_node=scene.nodes["b1"],
        to_worker=came, to_node=scene.nodes["d2"], source=source, passed_over=passed,
        target_reason="warm standby of this job, another failure domain",
    )  # fmt: skip


def transferred(
    job: jobs.Job, move: jobs.Move, began: float, took: float, source: str
) -> dict[str, Any]:
    return {
        "type": "transferred", "job_id": str(job.pk), "attempt": 1, "generation": 2,
        "worker_id": str(move.to_worker_id), "rank": 1, "migration_id": str(move.migration_id),
        "source_node": "b1", "holder": source, "carrier": "tcp", "bytes_moved": 37_812_224,
        "source_digest": digest("state", move.pk), "target_digest": digest("state", move.pk),
        "began_at": began, "ended_at": began + took,
    }  # fmt: skip


def begin_failover(scene: Scene, job: jobs.Job) -> jobs.Incident:
    """A failure that is being healed now: the transfer runs."""
    at = scene.now - timedelta(seconds=1.4)
    incident = make_incident(
        scene, job, 1, job.committed_step, at, summary="Rank 1 on b2 was killed by signal 9",
        state=IncidentState.RECOVERING, state_since=at, cause_class=CauseClass.OPERATING_SYSTEM,
    )  # fmt: skip
    incident.node_names = ["b2"]
    incident.save()
    transition(
        incident, IncidentState.OPEN, IncidentState.RECOVERING, "source and target are known", at
    )
    migration = make_migration(
        scene, job, incident, 1, job.committed_step, at, MigrationState.MOVING
    )
    ends = {StageName.DETECT: 0.03, StageName.DECIDE: 0.08, StageName.RESERVE: 0.2}
    begins = {
        StageName.DETECT: 0.0,
        StageName.DECIDE: 0.03,
        StageName.RESERVE: 0.08,
        StageName.TRANSFER: 0.2,
    }
    for name, begin in begins.items():
        ended = at + timedelta(seconds=ends[name]) if name in ends else None
        jobs.Stage.objects.create(
            migration=migration, name=name, began_at=at + timedelta(seconds=begin), ended_at=ended
        )
    jobs.Move.objects.create(
        migration=migration, rank=1, from_worker=job.workers.get(rank=1),
        from_node=scene.nodes["b2"], to_worker=make_worker(scene, job, "d1", None, 1, WorkerState.STANDBY),
        to_node=scene.nodes["d1"], source=Source.CUSTODY, passed_over=["live: the process has ended"],
    )  # fmt: skip
    job.state, job.state_since = JobState.RECOVERING, at
    job.save()
    scene.incidents["live"] = incident
    return incident


def end_failover(incident: jobs.Incident) -> None:
    """The live one ends covered, as the reconciler would leave it."""
    now = clock.now()
    migration = incident.migrations.get()
    for name in (StageName.REJOIN, StageName.VERIFY):
        jobs.Stage.objects.get_or_create(
            migration=migration, name=name, defaults={"began_at": now, "ended_at": now}
        )
    migration.stages.filter(ended_at__isnull=True).update(ended_at=now)
    jobs.Migration.objects.filter(pk=migration.pk).update(state=MigrationState.DONE, ended_at=now)
    jobs.Incident.objects.filter(pk=incident.pk).update(
        state=IncidentState.RESOLVED, verdict=Verdict.COVERED, resolved_at=now, state_since=now,
        lost_steps=0, pause_ms=1432.0, evidence=evidence(incident.job, incident.step),
        verdict_reason="every level holds",
    )  # fmt: skip
    jobs.Job.objects.filter(pk=incident.job_id).update(state=JobState.RUNNING, state_since=now)
