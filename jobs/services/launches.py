"""Generations, placements and the workers that fill them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agent import protocol
from nodes.selectors import NodeView
from yoco_platform.core import clock

from ..models import Generation, Job, Order, Placement, Worker
from ..placement import Seat, Slot, buddies
from ..states import OrderState, WorkerState
from .orders import order_create, store_ref
from .steps import worker_step


def generation_create(
    *, job: Job, number: int, resume_at: int, store_node: NodeView, ranks: Mapping[int, Worker]
) -> Generation:
    """Write a membership with a random prefix and secret for its store, and make it the job's."""
    now = clock.now()
    Generation.objects.filter(job=job, attempt=job.attempt, ended_at__isnull=True).update(
        ended_at=now
    )
    generation = Generation.objects.create(
        job=job,
        attempt=job.attempt,
        number=number,
        resume_at=resume_at,
        store_node_id=store_node.id,
        store_prefix=f"{job.pk}.{job.attempt}.{number}.{secrets.token_hex(8)}",
        store_secret=secrets.token_hex(16),
        began_at=now,
    )
    Placement.objects.bulk_create(
        Placement(generation=generation, rank=rank, worker=worker, node_id=worker.node_id)
        for rank, worker in sorted(ranks.items())
    )
    job.generation = number
    job.save(update_fields=["generation"])
    return generation


def buddies_of(ranks: Mapping[int, Worker], nodes: Mapping[int, NodeView]) -> dict[str, str]:
    """The buddy map of a membership as orders carry it."""
    seats = {
        rank: Seat(worker.node_id, nodes[worker.node_id].failure_domain)
        for rank, worker in ranks.items()
    }
    return {str(rank): str(buddy) for rank, buddy in buddies(seats).items()}


def workers_create(
    *,
    job: Job,
    generation: int,
    slots: Iterable[Slot],
    as_ranks: bool,
    provisional: Iterable[int] = (),
) -> list[Worker]:
    """Rows of workers to be launched: ranks 0… in order, or standbys of these provisional ranks."""
    now = clock.now()
    placed = list(slots)
    numbers = list(range(len(placed))) if as_ranks else list(provisional)
    return Worker.objects.bulk_create(
        Worker(
            job=job,
            attempt=job.attempt,
            node_id=slot.node_id,
            gpu_index=slot.gpu_index,
            rank=number if as_ranks else None,
            provisional_rank=number,
            generation=generation,
            state=WorkerState.ORDERED,
            state_since=now,
        )
        for slot, number in zip(placed, numbers, strict=True)
    )


def provisional_ranks(
    world_size: int, taken: Iterable[int], count: int, lost: Iterable[int] = ()
) -> list[int]:
    """Which ranks new standbys are set up as: those that wait for one, then the others, 0 last.

    Scripts log and save on rank 0. The last rank of an uneven sharding has other shapes than the rest,
    so low numbers come first.
    """
    busy, wanted = set(taken), set(lost)
    order = sorted(
        range(world_size), key=lambda rank: (rank not in wanted, rank in busy, rank == 0, rank)
    )
    return [order[index % world_size] for index in range(count)]


def launches_create(
    *,
    job: Job,
    generation: Generation,
    workers: Iterable[Worker],
    nodes: Mapping[int, NodeView],
    buddy_map: dict[str, str],
    store: Generation | None = None,
) -> None:
    """One launch order for each node among these workers.

    ``store``: the generation whose store keeps the recordings of set-up, when it is another one.
    """
    by_node: dict[int, list[Worker]] = {}
    for worker in workers:
        by_node.setdefault(worker.node_id, []).append(worker)
    kept_by = store or generation
    ref = store_ref(nodes[kept_by.store_node_id], kept_by.store_prefix, kept_by.store_secret)
    for node_id, own in by_node.items():
        body = protocol.LaunchOrder(
            job_id=str(job.pk),
            attempt=job.attempt,
            generation=generation.number,
            world_size=job.world_size,
            command=job.command,
            environment=job.environment,
            working_directory=job.working_directory,
            run_as=job.run_as,
            workers=[_spec(worker) for worker in own],
            store=ref,
            redundancy=job.redundancy,  # type: ignore[arg-type]  # checked when it was submitted
            accumulation=job.accumulation,  # type: ignore[arg-type]  # checked when it was submitted
            buddies=buddy_map,
            limits=limits_of(job),
        )
        order_create(node_id=node_id, job=job, body=body)


def _spec(worker: Worker) -> protocol.WorkerSpec:
    return protocol.WorkerSpec(
        worker_id=str(worker.pk),
        rank=worker.rank,
        provisional_rank=worker.provisional_rank,
        gpu_index=worker.gpu_index,
    )


def limits_of(job: Job) -> protocol.Limits:
    return msgspec.convert(job.limits, protocol.Limits)


def standbys_recall(*, job: Job, standbys: Iterable[Worker]) -> None:
    """Take back launches of standbys that no agent has seen: their orders name an old generation."""
    waiting = [standby for standby in standbys if standby.state == WorkerState.ORDERED]
    if not waiting:
        return
    never_sent = {
        str(spec["worker_id"]): order
        for order in Order.objects.filter(job=job, kind="launch", state=OrderState.PENDING)
        for spec in _specs_in(order)
    }
    for standby in waiting:
        order = never_sent.get(str(standby.pk))
        if order is not None:
            Order.objects.filter(pk=order.pk, state=OrderState.PENDING).update(
                state=OrderState.EXPIRED, code="superseded", ended_at=clock.now()
            )
            worker_step(worker=standby, to=WorkerState.EXITED, reason="its generation is over")


def _specs_in(order: Order) -> list[dict[str, Any]]:  # Any: JSON of an order
    specs: list[dict[str, Any]] = msgspec.json.decode(order.body)["workers"]
    return specs
