"""Migrations: a plan becomes rows and orders in one transaction."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db import transaction

from agent import protocol
from nodes.selectors import NodeView
from yoco_platform.core import clock

from ..models import Generation, Incident, Job, Migration, Move, Worker
from ..recovery import MovePlan, Plan, Stream
from ..states import IncidentState, MigrationState, StageName, WorkerState
from .launches import buddies_of, generation_create, limits_of, standbys_recall
from .orders import orders_create, orders_supersede, store_ref
from .stages import stage_begin, stage_end, stages_decided
from .steps import incident_step, migration_step, migration_tell, workers_rejoin

Role = protocol.Survive | protocol.Serve | protocol.Adopt | protocol.Retire


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a plan is carried out on: rows of the pass, and nodes as they are seen now."""

    job: Job
    incident: Incident | None
    workers: Mapping[str, Worker]
    nodes: Mapping[int, NodeView]
    standbys: tuple[Worker, ...] = ()


@transaction.atomic(savepoint=False)
def migration_pause(
    *, job: Job, incident: Incident | None, workers: list[Worker], reason: str
) -> Migration:
    """Begin a planned move: ask every agent of the generation to agree on a fence."""
    now = clock.now()
    migration = Migration.objects.create(
        job=job,
        incident=incident,
        attempt=job.attempt,
        from_generation=job.generation,
        state=MigrationState.PAUSING,
        state_since=now,
        reason=reason,
        created_at=now,
    )
    began_at = now if incident is None else incident.occurred_at
    observed_at = now if incident is None else incident.observed_at
    stage_begin(migration=migration, name=StageName.DETECT, at=began_at)
    stage_end(migration=migration, name=StageName.DETECT, at=observed_at)
    stage_begin(migration=migration, name=StageName.DECIDE, at=observed_at)
    _tell(migration)
    body = protocol.PauseOrder(
        job_id=str(job.pk),
        attempt=job.attempt,
        generation=job.generation,
        migration_id=str(migration.pk),
    )
    orders_create(
        job=job,
        bodies=dict.fromkeys(sorted({worker.node_id for worker in workers}), body),
        migration=migration,
        deadline_s=limits_of(job).collective_s,
    )
    return migration


@transaction.atomic(savepoint=False)
def migration_begin(*, plan: Plan, ground: Ground, pausing: Migration | None) -> Migration:
    """Write generation, placements, moves, stages and one order per agent. All or nothing."""
    job = ground.job
    ranks = _ranks_of(plan, ground)
    trails = _trails_known(plan, ground)
    _membership(plan, ground, ranks)
    generation = generation_create(
        job=job,
        number=job.generation + 1,
        resume_at=plan.resume_at,
        store_node=_store_node(plan, ground, ranks),
        ranks=ranks,
    )
    migration = _moving(plan, ground, pausing, generation)
    migration.trails = trails
    migration.save(update_fields=["trails"])
    Move.objects.bulk_create(_move_row(migration, move) for move in plan.moves)
    orders_supersede(job=job, kinds=("interrupt", "pause", "regroup"))
    standbys_recall(
        job=job, standbys=[s for s in ground.standbys if s.pk not in _targets(plan, ground)]
    )
    _orders(plan, ground, migration, generation, ranks)
    if ground.incident is not None and ground.incident.state == IncidentState.OPEN:
        incident_step(
            incident=ground.incident,
            to=IncidentState.RECOVERING,
            reason=plan.reason,
            waiting_for="",
        )
    return migration


@transaction.atomic(savepoint=False)
def migration_fail(*, migration: Migration, incident: Incident | None, reason: str) -> None:
    """End a migration that did not come through; its incident is open again for the next plan."""
    migration_step(migration=migration, to=MigrationState.FAILED, reason=reason)
    # Regroup orders stay: an agent must know the generation that it is then asked to leave.
    orders_supersede(job=migration.job, kinds=("pause",))
    for stage in migration.stages.filter(ended_at__isnull=True):
        stage_end(migration=migration, name=StageName(stage.name), failed=reason)
    if incident is not None and incident.state in (
        IncidentState.RECOVERING,
        IncidentState.VERIFYING,
    ):
        incident_step(incident=incident, to=IncidentState.OPEN, reason=reason)


def _moving(
    plan: Plan, ground: Ground, pausing: Migration | None, generation: Generation
) -> Migration:
    """The migration that leads to ``generation``: the one that was pausing, or a new one."""
    now = clock.now()
    if pausing is not None:
        return _goes_on(plan, ground, pausing, generation, now)
    incident = ground.incident
    before = None if incident is None else incident.migrations.order_by("pk").last()
    migration = Migration.objects.create(
        job=ground.job,
        incident=incident,
        attempt=ground.job.attempt,
        from_generation=generation.number - 1,
        to_generation=generation.number,
        resume_at=plan.resume_at,
        state=MigrationState.MOVING,
        state_since=now,
        reason=plan.reason,
        created_at=now,
    )
    began_at = observed_at = now
    if before is not None and before.ended_at is not None:
        # A further try is detected by the failure of the one before it.
        began_at = observed_at = before.ended_at
    elif incident is not None:
        began_at, observed_at = incident.occurred_at, incident.observed_at
    stages_decided(
        migration=migration,
        began_at=began_at,
        observed_at=observed_at,
        now=now,
        reason=plan.reason,
    )
    _tell(migration)
    return migration


def _goes_on(
    plan: Plan, ground: Ground, pausing: Migration, generation: Generation, now: datetime
) -> Migration:
    if pausing.incident_id is None and ground.incident is not None:
        pausing.incident = ground.incident
        pausing.save(update_fields=["incident"])
    migration_step(
        migration=pausing,
        to=MigrationState.MOVING,
        reason=plan.reason,
        to_generation=generation.number,
        resume_at=plan.resume_at,
    )
    Migration.objects.filter(pk=pausing.pk).update(reason=plan.reason)
    stage_end(migration=pausing, name=StageName.DECIDE, at=now, reason=plan.reason)
    stage_begin(migration=pausing, name=StageName.RESERVE, at=now)
    return pausing


def _tell(migration: Migration) -> None:
    news = {
        "migration_id": migration.pk,
        "to_state": str(migration.state),
        "reason": migration.reason,
    }
    migration_tell(migration, "migration", news)


def _ranks_of(plan: Plan, ground: Ground) -> dict[int, Worker]:
    stay = {rank: ground.workers[worker_id] for rank, worker_id in plan.stay.items()}
    moved = {move.rank: ground.workers[move.to_worker] for move in plan.moves}
    return {**stay, **moved}


def _trails_known(plan: Plan, ground: Ground) -> dict[str, tuple[int, str]]:
    """Rank -> (step, head) of its trail, as agents told them before anything is moved: at the step to go
    on from where that is known, else its newest mark.

    A target of a move that failed has its head from the copy: it can bear no witness to it.
    """
    copies = set(
        Move.objects.filter(
            migration__job=ground.job,
            migration__attempt=ground.job.attempt,
            migration__state=MigrationState.FAILED,
        ).values_list("to_worker_id", flat=True)
    )
    known: dict[str, tuple[int, str]] = {}
    witnesses = [w for w in ground.workers.values() if w.rank is not None and w.pk not in copies]
    for worker in sorted(witnesses, key=lambda w: w.mark_step):
        if 0 <= worker.mark_step <= plan.resume_at:
            known[str(worker.rank)] = (worker.mark_step, worker.mark_head)
    # Of two that were this rank the earlier has the last word.
    for worker in sorted(witnesses, key=lambda w: -w.generation):
        position = worker.position or {}
        if position.get("fence") == plan.resume_at and position.get("trail_head"):
            known[str(worker.rank)] = (plan.resume_at, position["trail_head"])
    return known


def _targets(plan: Plan, ground: Ground) -> set[object]:
    return {ground.workers[move.to_worker].pk for move in plan.moves}


def _membership(plan: Plan, ground: Ground, ranks: dict[int, Worker]) -> None:
    """Everybody in ``ranks`` rejoins; whoever a rank leaves keeps its state until it is let go."""
    for move in plan.moves:
        left, taken = ground.workers[move.from_worker], ranks[move.rank]
        if left.state == WorkerState.BLOCKED or left.custody == "usable":
            left.holds_state = left.state != WorkerState.LOST
            left.save(update_fields=["holds_state"])
        taken.rank, taken.replica_group = move.rank, left.replica_group
        taken.save(update_fields=["rank", "replica_group"])
    workers_rejoin(workers=list(ranks.values()), generation=ground.job.generation + 1)


def _store_node(plan: Plan, ground: Ground, ranks: dict[int, Worker]) -> NodeView:
    """A healthy node of the new membership, rather one that was in the old one too."""
    order = sorted(
        ranks.items(),
        key=lambda item: (
            not ground.nodes[item[1].node_id].takes_work,
            item[0] not in plan.stay,
            item[0],
        ),
    )
    return ground.nodes[order[0][1].node_id]


def _move_row(migration: Migration, move: MovePlan) -> Move:
    return Move(
        migration=migration,
        rank=move.rank,
        from_worker_id=move.from_worker,
        from_node_id=move.from_place.node_id,
        to_worker_id=move.to_worker,
        to_node_id=move.to_place.node_id,
        source=move.source,
        finish=move.finish,
        passed_over=list(move.passed_over),
        num_streams=len(move.streams),
        source_node_ids=sorted({stream.place.node_id for stream in move.streams}),
        target_reason=move.target_reason,
    )


@dataclass
class _Roles:
    """What each node does, gathered before anything is written."""

    of_node: dict[int, list[Role]] = field(default_factory=lambda: defaultdict(list))

    def stream(self, move: MovePlan, stream: Stream, source: NodeView) -> protocol.Fetch:
        """Let the source serve and return what the target fetches."""
        stream_id, secret = secrets.token_hex(8), secrets.token_hex(32)
        self.of_node[source.id].append(
            protocol.Serve(
                rank=move.rank,
                holder=stream.holder,
                what=stream.what,
                stream_id=stream_id,
                stream_secret=secret,
                target_node=str(move.to_place.node_id),
                finish_micro=move.finish_micro,
                source_rank=None if stream.source_rank == move.rank else stream.source_rank,
            )
        )
        return protocol.Fetch(
            node=str(source.id),
            endpoint=source.endpoint,
            holder=stream.holder,
            what=stream.what,
            stream_id=stream_id,
            stream_secret=secret,
        )


def _orders(
    plan: Plan,
    ground: Ground,
    migration: Migration,
    generation: Generation,
    ranks: dict[int, Worker],
) -> None:
    roles = _Roles()
    for rank, worker_id in sorted(plan.stay.items()):
        node_id = ground.workers[worker_id].node_id
        roles.of_node[node_id].append(protocol.Survive(rank=rank))
    for move in plan.moves:
        _move_roles(roles, move, ground)
    store_node = ground.nodes[generation.store_node_id]
    buddy_map = buddies_of(ranks, ground.nodes)
    bodies: dict[int, protocol.OrderBody] = {}
    for node_id, own in sorted(roles.of_node.items()):
        body = protocol.RegroupOrder(
            job_id=str(ground.job.pk),
            attempt=ground.job.attempt,
            from_generation=generation.number - 1,
            generation=generation.number,
            migration_id=str(migration.pk),
            resume_at=plan.resume_at,
            resume_micro=plan.resume_micro,
            store=store_ref(store_node, generation.store_prefix, generation.store_secret),
            buddies=buddy_map,
            roles=own,
        )
        bodies[node_id] = body
    orders_create(
        job=ground.job,
        bodies=bodies,
        migration=migration,
        deadline_s=limits_of(ground.job).collective_s,
    )


def _move_roles(roles: _Roles, move: MovePlan, ground: Ground) -> None:
    fetches = [
        roles.stream(move, stream, ground.nodes[stream.place.node_id]) for stream in move.streams
    ]
    roles.of_node[move.to_place.node_id].append(
        protocol.Adopt(
            worker_id=move.to_worker,
            rank=move.rank,
            finish=move.finish,
            fetches=fetches,
            drawn=move.drawn,
            drawn_hash=move.drawn_hash,
            finish_micro=move.finish_micro,
        )
    )
    for worker in ground.workers.values():
        # Those that go on are REJOINING by now: who is still blocked as this rank has been left.
        if worker.rank == move.rank and worker.state == WorkerState.BLOCKED:
            roles.of_node[worker.node_id].append(
                protocol.Retire(rank=move.rank, worker_id=str(worker.pk))
            )
