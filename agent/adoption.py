"""The target's side of a move: a standby becomes a rank, its memory filled from other agents."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import structlog

from . import link
from .config import AgentConfig
from .custody import close_all
from .errors import AdoptFailed
from .protocol import Adopt, EventBody, Fetch, MigrationFailed, RegroupOrder, Transferred
from .reports import of
from .transfer.errors import TransferError
from .transfer.fetch import StreamIdentity, TargetState, TransferReport, fetch
from .transfer.manifest import Manifest
from .transfer.state import BlobName
from .workers import Worker, Workers

_log = structlog.get_logger("yoco.adoption")
Carrier = Literal["auto", "tcp"]
PATIENCE_MAX_S = 30.0
"""How long a source may need to come to rest."""
_LONG_S = 3600.0
_ORDER_OF_BLOBS: tuple[BlobName, ...] = ("small", "fence", "prepared", "micro")


@dataclass(frozen=True)
class Adoption:
    """What one Adopt needs to know. ``run`` raises AdoptFailed after it has told the platform."""

    order: RegroupOrder
    role: Adopt
    config: AgentConfig
    node: str
    host_key: str
    workers: Workers
    emit: Callable[[EventBody], object]

    async def run(self, timeout_s: float) -> None:
        """Return when the rank stands in the new generation."""
        worker = self.workers.get(self.role.worker_id)
        try:
            if worker is None or not worker.alive:
                raise AdoptFailed("the standby is not here (any more)", "unknown_worker")
            await self._adopted(worker, time.monotonic() + timeout_s)
        except AdoptFailed as error:
            self._tell(error)
            raise

    async def _adopted(self, worker: Worker, deadline: float) -> None:
        record, role, order = worker.record, self.role, self.order
        if worker.regrouped >= order.generation:
            return  # a repeat of an order that was already followed
        if record.rank is not None:
            raise AdoptFailed(f"the worker is already rank {record.rank}", "not_a_standby")
        worker.adopt_ready, worker.adopt_failed, worker.blocked = -1, None, None
        before = record.generation
        record.rank, record.generation = role.rank, order.generation
        record.migration_id = order.migration_id
        worker.save()
        restored = False
        try:
            await self._shaped(worker, deadline)
            blobs = await self._filled(worker, deadline)
            restored = self._restore(worker, blobs)
            await self._stands(worker, deadline)
        except (AdoptFailed, asyncio.CancelledError):
            # Once it was told to restore it is the rank, whatever becomes of this order: it stops and
            # resumes as such. Only its own word that it could not makes it nobody again.
            is_rank = worker.blocked is not None or (restored and worker.adopt_failed is None)
            if worker.alive and not is_rank and worker.regrouped < order.generation:
                record.rank, record.generation = None, before
                worker.save()
            raise

    async def _shaped(self, worker: Worker, deadline: float) -> None:
        order, role = self.order, self.role
        worker.say(
            link.AdoptRank(
                rank=role.rank,
                generation=order.generation,
                resume_at=order.resume_at,
                resume_micro=order.resume_micro,
                drawn=role.drawn,
                drawn_hash=role.drawn_hash,
                finish_micro=role.finish_micro,
                finish=role.finish,
                store=order.store,
                buddies=order.buddies,
            )
        )

        def answered(each: Worker) -> bool:
            failed = each.adopt_failed is not None
            return each.adopt_ready == role.rank or failed or self._is_over(each)

        ready = await worker.until(answered, _left(deadline))
        failed = worker.adopt_failed
        if failed is not None:
            raise AdoptFailed(failed.message, failed.code)
        self._check_over(worker)
        if not ready:
            words = "took no shapes in time" if worker.alive else "ended while taking shapes"
            raise AdoptFailed(f"the standby {words}", "standby_silent")

    async def _filled(self, worker: Worker, deadline: float) -> dict[BlobName, tuple[int, bytes]]:
        """Bring every stream in. Nothing of it is used unless all came whole."""
        arena = worker.custody.arena("live")
        if arena is None:
            raise AdoptFailed("the standby has shared no memory", "no_arena")
        if worker.filling is not None:
            # Streams of an order that was overtaken still write to this memory: they end first.
            await self._done(worker, worker.filling)
        work = self._fetch_all(worker, arena.manifest, arena.duplicate(), deadline)
        filling = worker.filling = asyncio.create_task(work)
        await self._done(worker, filling)
        reports, worker.filling = filling.result(), None
        blobs: dict[BlobName, tuple[int, bytes]] = {}
        for report in reports:
            if isinstance(report, TransferError):
                raise AdoptFailed(report.message, report.code) from report
            if isinstance(report, BaseException):
                raise report
            blobs |= report.blobs
        return blobs

    async def _done(self, worker: Worker, filling: asyncio.Task[Any]) -> None:
        """Return when streams have ended. Raises AdoptFailed when the generation or the process does first.

        They go on then, as when the order is cancelled: the memory must not be pulled from under threads
        that still write to it.
        """
        ended = asyncio.create_task(worker.until(self._is_over, _LONG_S))
        try:
            await asyncio.wait((filling, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not filling.done():
            self._check_over(worker)
            raise AdoptFailed("the standby ended while it was filled", "standby_silent")

    def _is_over(self, worker: Worker) -> bool:
        return worker.interrupted >= self.order.generation

    def _check_over(self, worker: Worker) -> None:
        """Whom this generation waits for may never come. Raises AdoptFailed."""
        if self._is_over(worker):
            raise AdoptFailed("the generation was interrupted", "interrupted")

    async def _fetch_all(
        self, worker: Worker, manifest: Manifest, storages: dict[int, int], deadline: float
    ) -> list[TransferReport | BaseException]:
        target = TargetState(manifest, storages)
        try:
            fetches = (
                self._fetch(worker, stream, target, deadline) for stream in self.role.fetches
            )
            return await asyncio.gather(*fetches, return_exceptions=True)
        finally:
            target.close()
            close_all(storages.values())

    async def _fetch(
        self, worker: Worker, stream: Fetch, target: TargetState, deadline: float
    ) -> TransferReport:
        order, role = self.order, self.role
        identity = StreamIdentity(
            job_id=order.job_id,
            attempt=order.attempt,
            generation=order.generation,
            rank=role.rank,
            step=order.resume_at,
            what=stream.what,
            source_node=stream.node,
            target_node=self.node,
        )
        report = await asyncio.to_thread(
            fetch,
            stream.endpoint,
            stream.stream_id,
            stream.stream_secret,
            identity,
            target,
            cast(Carrier, self.config.carrier),
            self.host_key,
            tls="off" if self.config.tls == "off" else "required",
            bind_host=self.config.bind,
            patience_s=min(_left(deadline), PATIENCE_MAX_S),
        )
        self.emit(
            Transferred(
                rank=role.rank,
                migration_id=order.migration_id,
                source_node=stream.node,
                holder=stream.holder,
                carrier=report.carrier,
                bytes_moved=report.bytes_moved,
                source_digest=report.source_digest,
                target_digest=report.target_digest,
                began_at=report.began_at,
                ended_at=report.ended_at,
                **of(worker),
            )
        )
        return report

    def _restore(self, worker: Worker, blobs: dict[BlobName, tuple[int, bytes]]) -> bool:
        """Tell it that its memory is filled; False when it cannot be told."""
        names = [name for name in _ORDER_OF_BLOBS if name in blobs]
        message = link.Restore(
            rank=self.role.rank,
            generation=self.order.generation,
            blobs=list(names),
            steps=[blobs[name][0] for name in names],
        )
        return worker.say(message, [_memfd(name, blobs[name][1]) for name in names])

    async def _stands(self, worker: Worker, deadline: float) -> None:
        def settled(each: Worker) -> bool:
            return each.regrouped >= self.order.generation or each.adopt_failed is not None

        stands = await worker.until(settled, _left(deadline))
        failed = worker.adopt_failed
        if failed is not None:
            raise AdoptFailed(failed.message, failed.code)
        if not stands:
            words = "did not rejoin in time" if worker.alive else "ended before it rejoined"
            raise AdoptFailed(f"the standby {words}", "standby_silent")

    def _tell(self, error: AdoptFailed) -> None:
        order, role = self.order, self.role
        _log.warning("adoption_failed", rank=role.rank, code=error.code, reason=error.message)
        self.emit(
            MigrationFailed(
                job_id=order.job_id,
                attempt=order.attempt,
                generation=order.generation,
                worker_id=role.worker_id,
                rank=role.rank,
                migration_id=order.migration_id,
                code=error.code,
                message=error.message,
            )
        )


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _memfd(name: str, data: bytes) -> int:
    fd = os.memfd_create(f"yoco-{name}", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
