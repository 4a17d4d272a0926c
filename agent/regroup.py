"""One regroup order on this node: every role of it, side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from . import link
from .adoption import Adoption
from .config import AgentConfig
from .errors import AgentError, OldGeneration, RegroupFailed, SourceMissing, UnknownWorker
from .parked_files import Parked
from .parking import ParkedStates
from .protocol import Adopt, EventBody, RegroupOrder, Retire, Serve, Survive
from .sources import at_rest, holder_of, parked_state, state_of
from .transfer.errors import OldGeneration as StreamOfOldGeneration
from .transfer.errors import SourceUnavailable
from .transfer.server import DataServer, ServeReport, SourceState, StreamIdentity
from .workers import Worker, Workers

_log = structlog.get_logger("yoco.regroup")
_ANSWER_S = 5.0


@dataclass(frozen=True)
class Regroup:
    """The order and what is needed to follow it. ``run`` raises the first AgentError of its roles."""

    order: RegroupOrder
    config: AgentConfig
    node: str
    host_key: str
    workers: Workers
    data: DataServer
    parked: ParkedStates
    emit: Callable[[EventBody], object]

    async def run(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        order = self.order
        self.data.end_generations(order.job_id, order.attempt, order.generation)
        results = await asyncio.gather(
            *(self._role(role, deadline) for role in order.roles), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _role(self, role: Survive | Serve | Adopt | Retire, deadline: float) -> None:
        left_s = max(deadline - time.monotonic(), 0.0)
        match role:
            case Survive():
                await self._survive(role, left_s)
            case Serve():
                await self._serve(role, left_s)
            case Adopt():
                await Adoption(
                    self.order,
                    role,
                    self.config,
                    self.node,
                    self.host_key,
                    self.workers,
                    self.emit,
                ).run(left_s)
            case Retire():
                self._retire(role)

    def _members(self) -> list[Worker]:
        order = self.order
        key = (order.job_id, order.attempt)
        return [w for w in self.workers if (w.record.job_id, w.record.attempt) == key]

    async def _survive(self, role: Survive, timeout_s: float) -> None:
        """Resume a blocked rank and return when it stands in the new generation."""
        order = self.order
        alive = [w for w in self._members() if w.alive and w.record.rank == role.rank]
        if not alive:
            raise UnknownWorker(f"rank {role.rank} does not run here")
        worker = max(alive, key=lambda w: w.record.generation)
        record = worker.record
        if record.generation > order.generation:
            raise OldGeneration(f"rank {role.rank} stands in generation {record.generation}")
        if worker.regrouped < order.generation:
            deadline = time.monotonic() + timeout_s
            if not await worker.until(lambda w: w.blocked is not None, timeout_s):
                raise RegroupFailed(f"rank {role.rank} did not stop")
            worker.blocked = None
            record.generation, record.migration_id = order.generation, order.migration_id
            record.retiring = False
            worker.save()
            worker.say(
                link.Resume(
                    generation=order.generation,
                    resume_at=order.resume_at,
                    resume_micro=order.resume_micro,
                    store=order.store,
                    buddies=order.buddies,
                )
            )
            left_s = max(deadline - time.monotonic(), 0.0)
            if not await worker.until(lambda w: w.regrouped >= order.generation, left_s):
                raise RegroupFailed(f"rank {role.rank} did not rejoin")

    async def _serve(self, role: Serve, timeout_s: float) -> None:
        """Offer the state once it is at rest. A target is told at once when it never will be."""
        order = self.order
        identity = StreamIdentity(
            job_id=order.job_id,
            attempt=order.attempt,
            generation=order.generation,
            rank=role.rank,
            step=order.resume_at,
            what=role.what,
            source_node=self.node,
            target_node=role.target_node,
        )
        missing: SourceMissing | None = None
        try:
            source = await self._source(role, timeout_s)
        except SourceMissing as error:
            missing = error
            source = partial(_unavailable, error.message)
        try:
            self.data.offer(
                role.stream_id, role.stream_secret, identity, source, timeout_s, _log_end
            )
        except StreamOfOldGeneration as error:
            raise OldGeneration(error.message) from error
        except ValueError as error:
            raise RegroupFailed(str(error), "bad_order") from error
        if missing is not None:
            raise missing

    async def _source(self, role: Serve, timeout_s: float) -> Callable[[], SourceState]:
        """Memory of a worker here, at rest, or what is parked. Raises SourceMissing."""
        order = self.order
        if role.holder == "custody":
            parked = self.parked.find(
                order.job_id, order.attempt, role.rank, before=order.generation
            )
            if parked is not None:
                return partial(self._from_disk, parked, role)
        worker = holder_of(self.workers, order, role)
        await at_rest(worker, role, order.resume_at, timeout_s)
        return partial(self._state, worker, role, asyncio.get_running_loop())

    def _from_disk(self, parked: Parked, role: Serve) -> SourceState:
        """Called in the stream's thread."""
        try:
            return parked_state(parked, role, self.order.resume_at, self.order.resume_micro)
        except (AgentError, OSError) as error:
            raise SourceUnavailable(str(error)) from error

    def _state(self, worker: Worker, role: Serve, loop: asyncio.AbstractEventLoop) -> SourceState:
        """Called in the stream's thread; custody is looked at in the loop's, where it changes."""

        async def look() -> SourceState:
            return state_of(worker.custody, role, self.order.resume_at, self.order.resume_micro)

        try:
            return asyncio.run_coroutine_threadsafe(look(), loop).result(_ANSWER_S)
        except (AgentError, TimeoutError, OSError) as error:
            raise SourceUnavailable(str(error) or "the agent is busy") from error

    def _retire(self, role: Retire) -> None:
        """The worker stays, paused, until its rank's new place has committed (ReleaseOrder)."""
        worker = self.workers.get(role.worker_id)
        if worker is not None and worker.record.rank == role.rank:
            worker.record.retiring = True
            worker.save()


def _unavailable(message: str) -> SourceState:
    raise SourceUnavailable(message)


def _log_end(report: ServeReport) -> None:
    if report.code:
        _log.warning("stream_failed", stream=report.stream_id, code=report.code)
