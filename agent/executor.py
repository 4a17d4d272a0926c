"""Orders: each is followed once, answered always, and harmless when it comes late or again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from weakref import WeakSet

import structlog

from . import launch, link
from .config import AgentConfig
from .errors import AgentError, OldGeneration, OrderExpired, StartFailed, UnknownWorker
from .hanging import Hanging
from .link import WorkerStart
from .parking import ParkedStates, store_kept
from .protocol import (
    EndHungOrder,
    Endpoint,
    EventBody,
    InterruptOrder,
    LaunchOrder,
    Order,
    OrderBody,
    OrderResult,
    ParkOrder,
    PauseOrder,
    RegroupOrder,
    ReleaseOrder,
    StopOrder,
    StoreRef,
    Survive,
    WorkerSpec,
)
from .records import Records
from .regroup import Regroup
from .reports import Reporter
from .store_server import StoreServer
from .transfer.server import DataServer
from .workers import Worker, Workers

_log = structlog.get_logger("yoco.orders")
Emit = Callable[[EventBody], object]
GRACE_S = 2.0
PREFIXES_KEPT = 16
"""Generations of a job whose store is kept here; more than the platform tries before it gives up."""


@dataclass(frozen=True)
class Node:
    """The parts of a running agent that orders act on."""

    config: AgentConfig
    name: str
    endpoint: Endpoint
    records: Records
    workers: Workers
    reporter: Reporter
    store: StoreServer
    data: DataServer
    hanging: Hanging
    parked: ParkedStates
    emit: Emit
    real_gpus: bool


@dataclass
class _Job:
    """Its newest generation, the last known to have committed, its store prefixes, its running regroup."""

    newest: tuple[int, int] = (0, 0)
    stood: tuple[int, int] = (0, 0)
    prefixes: dict[tuple[int, int], str] = field(default_factory=dict)
    regroup: asyncio.Task[None] | None = None


class Executor:
    """``take`` orders from any reply. ``results_ready`` is set while results wait to be posted."""

    def __init__(self, node: Node) -> None:
        self.results_ready = asyncio.Event()
        self._node = node
        self._jobs: dict[str, _Job] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._superseded: WeakSet[asyncio.Task[None]] = WeakSet()
        for kept in node.parked.stores:
            node.store.open_prefix(kept.prefix, kept.secret)
            node.store.put(kept.prefix, kept.values)
            self._job(kept.job_id).prefixes[kept.attempt, kept.generation] = kept.prefix
        if node.records.unposted_results():
            self.results_ready.set()

    @property
    def running(self) -> list[str]:
        """Ids of orders that are being followed."""
        return list(self._running)

    def take(self, orders: Iterable[Order]) -> None:
        """Begin what is new. An order that was done is answered again, one that runs goes on."""
        for order in orders:
            if order.order_id in self._running:
                continue
            if self._node.records.result(order.order_id) is not None:
                self._node.records.mark_posted(order.order_id, posted=False)
                self.results_ready.set()
                continue
            task = asyncio.create_task(self._follow(order), name=f"order {order.order_id}")
            self._running[order.order_id] = task

    async def close(self) -> None:
        """Stop following; what was not done is ordered again after the restart."""
        tasks = [*self._running.values(), *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, order: Order) -> None:
        code = message = ""
        began = time.monotonic()
        try:
            if order.expires_in_s <= 0:
                raise OrderExpired("its deadline had passed when it came")
            # Whoever waits inside gives up a little earlier, with words of its own.
            async with asyncio.timeout(order.expires_in_s + GRACE_S):
                await self._do(order.body, order.expires_in_s)
        except AgentError as error:
            code, message = error.code, error.message
        except TimeoutError:
            code, message = "order_timeout", f"not done within {order.expires_in_s:g} s"
        except asyncio.CancelledError:
            if asyncio.current_task() not in self._superseded:
                self._running.pop(order.order_id, None)
                raise
            code, message = "superseded", "a newer order for the job has come"
        except Exception as error:  # noqa: BLE001  an order that hits a fault of ours is answered too
            _log.exception("order_failed", order=order.order_id)
            code, message = "agent_failed", f"{type(error).__name__}: {error}"
        _log.info(
            "order_done",
            order=order.order_id,
            kind=type(order.body).__name__,
            code=code,
            seconds=round(time.monotonic() - began, 3),
        )
        result = OrderResult(order_id=order.order_id, ok=not code, code=code, message=message[:500])
        self._node.records.save_result(result)
        self._running.pop(order.order_id, None)
        self.results_ready.set()

    async def _do(self, body: OrderBody, limit_s: float) -> None:
        match body:
            case LaunchOrder():
                self._launch(body)
            case PauseOrder():
                await self._tell(body, link.Pause(generation=body.generation))
            case InterruptOrder():
                await self._interrupt(body)
            case RegroupOrder():
                await self._regroup(body, limit_s)
            case ReleaseOrder():
                self._release(body)
            case EndHungOrder():
                await self._node.hanging.end(body)
            case ParkOrder():
                await self._park(body)
            case StopOrder():
                await self._stop(body)

    # --- launch ---

    def _launch(self, order: LaunchOrder) -> None:
        job = self._job(order.job_id)
        self._refuse_old(order.job_id, order.attempt, order.generation)
        user = launch.admit(order, self._node.config)
        self._end_earlier_attempts(order)
        job.newest = max(job.newest, (order.attempt, order.generation))
        self._open_store(order.job_id, order.attempt, order.generation, order.store)
        failures = [self._start(order, spec, user) for spec in order.workers]
        for failure in failures:
            if failure is not None:
                raise failure

    def _start(self, order: LaunchOrder, spec: WorkerSpec, user: launch.User) -> StartFailed | None:
        node = self._node
        if node.workers.get(spec.worker_id) is not None:
            return None
        start = WorkerStart(
            worker_id=spec.worker_id,
            job_id=order.job_id,
            attempt=order.attempt,
            generation=order.generation,
            rank=spec.rank,
            provisional_rank=spec.provisional_rank,
            world_size=order.world_size,
            store=order.store,
            redundancy=order.redundancy,
            accumulation=order.accumulation,
            buddies=order.buddies,
            limits=order.limits,
            bind_host=node.config.bind,
        )
        record = launch.record_of(start, order.command, spec.gpu_index)
        try:
            worker = node.workers.start(
                record,
                environment=launch.environment(
                    order.environment,
                    start,
                    user,
                    reconnect=node.workers.reconnect_path,
                    gpu_index=spec.gpu_index if node.real_gpus else None,
                ),
                working_directory=order.working_directory,
                user=user,
            )
        except StartFailed as failure:
            node.emit(launch.never_started(start, failure))
            return failure
        node.reporter.watch_join(worker)
        node.reporter.started(worker)
        return None

    def _end_earlier_attempts(self, order: LaunchOrder) -> None:
        """The job was started again: what ran before is stale, whatever anybody said about it."""
        for worker in self._of_job(order.job_id):
            if worker.record.attempt < order.attempt:
                self._discard(worker, "a later attempt of the job has begun")
        self._node.parked.drop(order.job_id, (order.attempt, 0))

    # --- pause, interrupt ---

    async def _tell(self, order: PauseOrder | InterruptOrder, message: link.FromAgent) -> None:
        """Say it to every rank of that generation here; a worker without a link is waited for."""
        self._refuse_old(order.job_id, order.attempt, order.generation)
        ranks = [
            w
            for w in self._of_attempt(order.job_id, order.attempt)
            if w.alive and w.record.rank is not None and w.record.generation == order.generation
        ]
        if not ranks:
            raise UnknownWorker(f"no rank of generation {order.generation} runs here")
        for worker in ranks:
            await worker.until(lambda w: w.link is not None and w.link.open, 3600.0)
            worker.say(message)

    async def _interrupt(self, order: InterruptOrder) -> None:
        await self._tell(order, link.Interrupt(generation=order.generation))
        for worker in self._of_attempt(order.job_id, order.attempt):
            if worker.alive and worker.record.generation == order.generation:
                worker.note_interrupt(order.generation)
                self._spawn(self._node.hanging.end_unless_stopped(worker, order.generation))

    # --- regroup, release, stop ---

    async def _regroup(self, order: RegroupOrder, limit_s: float) -> None:
        node, job = self._node, self._job(order.job_id)
        self._refuse_old(order.job_id, order.attempt, order.generation)
        if job.newest < (order.attempt, order.generation):
            self._supersede(job)
        job.newest = (order.attempt, order.generation)
        self._open_store(order.job_id, order.attempt, order.generation, order.store)
        regroup = Regroup(
            order,
            node.config,
            node.name,
            node.endpoint.host_key,
            node.workers,
            node.data,
            node.parked,
            node.emit,
        )
        job.regroup = asyncio.current_task()
        try:
            await regroup.run(limit_s)
            # A rank that stands here again has left what was parked of it behind.
            stands = [role.rank for role in order.roles if isinstance(role, Survive)]
            node.parked.drop(order.job_id, (order.attempt, order.generation), stands)
        finally:
            if job.regroup is asyncio.current_task():
                job.regroup = None

    def _supersede(self, job: _Job) -> None:
        """End a regroup that a newer order makes pointless; it is answered with that code."""
        if job.regroup is not None:
            self._superseded.add(job.regroup)
            job.regroup.cancel()

    def _release(self, order: ReleaseOrder) -> None:
        job, stands = self._job(order.job_id), (order.attempt, order.generation)
        if job.stood < stands:
            # That before it is still kept: a standby may be reading from it what ranks published there.
            self._close_prefixes(job, [key for key in job.prefixes if key < job.stood])
            job.stood = stands
        for worker in self._of_attempt(order.job_id, order.attempt):
            record = worker.record
            if record.rank in order.ranks and record.generation < order.generation:
                self._discard(worker, "its rank lives elsewhere now")
        self._node.parked.drop(order.job_id, stands, order.ranks)

    async def _park(self, order: ParkOrder) -> None:
        """Write ranks to disk beside their workers, which go on waiting."""
        node = self._node
        self._refuse_old(order.job_id, order.attempt, order.generation)
        workers = [
            w
            for w in self._of_attempt(order.job_id, order.attempt)
            if w.alive and w.record.rank in order.ranks and w.record.generation == order.generation
        ]
        if len(workers) != len(order.ranks):
            raise UnknownWorker(f"not all of ranks {order.ranks} run here")
        kept = store_kept(order, node.endpoint.host, node.store)
        for parked in await node.parked.park(workers, order.step, kept):
            node.emit(parked.event())

    async def _stop(self, order: StopOrder) -> None:
        job, wanted = self._job(order.job_id), set(order.worker_ids)
        ends = []
        for worker in self._of_job(order.job_id):
            record = worker.record
            if record.attempt <= order.attempt and (not wanted or record.worker_id in wanted):
                ends.append(self._ended(worker, order))
        if not wanted:
            self._supersede(job)
            self._close_prefixes(job, [key for key in job.prefixes if key[0] <= order.attempt])
            self._node.parked.drop(order.job_id, (order.attempt + 1, 0))
        await asyncio.gather(*(end for end in ends if end is not None))

    def _ended(self, worker: Worker, order: StopOrder) -> asyncio.Task[None] | None:
        if not (order.keep_state and worker.record.rank is not None and worker.alive):
            held = order.keep_state and worker.record.rank is not None
            return None if held else self._discard(worker, order.reason)
        worker.detail = worker.detail or f"ended by order, its state kept: {order.reason}"
        return self._spawn(self._node.workers.end(worker))

    def _discard(self, worker: Worker, reason: str) -> asyncio.Task[None] | None:
        """End a worker and keep nothing of it. The task ends when it has."""
        worker.discard = True
        if not worker.alive:
            self._node.workers.forget(worker)
            return None
        worker.detail = worker.detail or f"ended by order: {reason}"
        grace_s = self._node.config.stop_grace_s
        return self._spawn(self._node.workers.quit(worker, reason, grace_s))

    # --- what several need ---

    def _job(self, job_id: str) -> _Job:
        return self._jobs.setdefault(job_id, _Job())

    def _of_job(self, job_id: str) -> list[Worker]:
        return [w for w in self._node.workers if w.record.job_id == job_id]

    def _of_attempt(self, job_id: str, attempt: int) -> list[Worker]:
        return [w for w in self._of_job(job_id) if w.record.attempt == attempt]

    def _refuse_old(self, job_id: str, attempt: int, generation: int) -> None:
        """Raises OldGeneration for an order that was overtaken by what already runs here."""
        here = [(w.record.attempt, w.record.generation) for w in self._of_job(job_id) if w.alive]
        newest = max([self._job(job_id).newest, *here])
        if (attempt, generation) < newest:
            raise OldGeneration(
                f"attempt {attempt}, generation {generation} of the job is over: "
                f"{newest[0]}, {newest[1]} is known here"
            )

    def _open_store(self, job_id: str, attempt: int, generation: int, ref: StoreRef) -> None:
        """Serve the generation's prefix when it is ours. Those before it are kept: standbys are set up
        with what was published in the last generation that stood, however many failed since."""
        store, job = self._node.store, self._job(job_id)
        if (ref.host, ref.port) != (self._node.endpoint.host, store.port):
            return
        try:
            store.open_prefix(ref.prefix, ref.secret)
        except ValueError as error:
            raise AgentError(str(error), "bad_order") from error
        job.prefixes[attempt, generation] = ref.prefix
        latest = sorted(job.prefixes)[-PREFIXES_KEPT:]
        over = [key for key in job.prefixes if key[0] < attempt or key not in latest]
        self._close_prefixes(job, over)

    def _close_prefixes(self, job: _Job, keys: list[tuple[int, int]]) -> None:
        for key in keys:
            self._node.store.close_prefix(job.prefixes.pop(key))

    def _spawn(self, work: object) -> asyncio.Task[None]:
        assert asyncio.iscoroutine(work)
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
