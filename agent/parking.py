"""What is parked on this node: written when a job gives its places up, served when it comes back."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import structlog

from .custody import close_all
from .errors import BadOrder, NoRoom, ParkFailed
from .parked_files import (
    STORE,
    UNFINISHED,
    Parked,
    ParkedStore,
    rank_found,
    rank_written,
    store_written,
)
from .protocol import ParkOrder
from .records import WorkerRecord
from .store_server import StoreServer
from .transfer.errors import TransferError
from .workers import Worker

_log = structlog.get_logger("yoco.parking")
RESERVE_BYTES = 64 * 1024 * 1024
"""Left free on the disk: the agent's own records live there too."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ParkedStates:
    """All that is parked on this node. Order of calls: ``open`` once, then anything.

    ``bytes_max`` 0: as much as the disk holds.
    """

    def __init__(self, root: Path, bytes_max: int) -> None:
        self._root = root
        self._bytes_max = bytes_max
        self._all: dict[tuple[str, int, int], Parked] = {}
        self.stores: list[ParkedStore] = []

    def __iter__(self) -> Iterator[Parked]:
        return iter(list(self._all.values()))

    def open(self) -> list[Parked]:
        """What an earlier run parked; what it did not finish is removed."""
        for folder in sorted(self._root.glob("*/*")):
            if folder.name.endswith(UNFINISHED):
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.is_dir():
                self._found(folder)
        for path in sorted(self._root.glob(f"*/{STORE}")):
            try:
                self.stores.append(msgspec.json.decode(path.read_bytes(), type=ParkedStore))
            except (OSError, msgspec.DecodeError) as error:
                _log.error("parked_store_unreadable", path=str(path), reason=str(error))
        return list(self._all.values())

    def _found(self, folder: Path) -> None:
        try:
            parked = rank_found(folder)
        except (OSError, msgspec.DecodeError, TransferError) as error:
            # It is left where it lies: a person may still want to look at it.
            _log.error("parked_state_unreadable", folder=str(folder), reason=str(error))
            return
        if parked is not None:
            self._keep(parked)

    def _keep(self, parked: Parked) -> None:
        about = parked.manifest
        key = (about.job_id, about.attempt, about.rank)
        other = self._all.get(key)
        if other is not None and other.manifest.generation > about.generation:
            parked, other = other, parked
        self._all[key] = parked
        if other is not None and other.folder != parked.folder:
            shutil.rmtree(other.folder, ignore_errors=True)

    def find(self, job_id: str, attempt: int, rank: int, *, before: int) -> Parked | None:
        """What is parked of a rank from a generation before that one."""
        parked = self._all.get((job_id, attempt, rank))
        return parked if parked is not None and parked.manifest.generation < before else None

    async def park(
        self, workers: Iterable[Worker], step: int, store: ParkedStore | None
    ) -> list[Parked]:
        """Write ranks that stand at fence ``step``. Raises ParkFailed, NoRoom, BadOrder: nothing is left."""
        standing = list(workers)
        for worker in standing:
            _check_at_rest(worker, step)
        self._check_room(standing)
        done: list[Parked] = []
        try:
            for worker in standing:
                folder = self._folder(worker.record.job_id) / _name_of(worker.record)
                # It owns descriptors: once begun it is let end, whoever gives up waiting for it.
                writing = asyncio.to_thread(_written(worker, folder, step))
                done.append(await asyncio.shield(writing))
            if store is not None:
                await asyncio.to_thread(store_written, self._folder(store.job_id), store)
        except (OSError, TransferError) as error:
            for parked in done:
                shutil.rmtree(parked.folder, ignore_errors=True)
            self._forget_missing()
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (NoRoom if full else ParkFailed)(f"{self._root}: {error}") from error
        for parked in done:
            self._keep(parked)
        return done

    def _forget_missing(self) -> None:
        """Parking again replaces what was parked before: where it failed neither may be left."""
        for key, parked in list(self._all.items()):
            if not parked.folder.is_dir():
                del self._all[key]

    def _check_room(self, workers: Iterable[Worker]) -> None:
        """Raises NoRoom before anything is written."""
        try:
            needed = sum(_size_of(worker) for worker in workers)
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            disk = os.statvfs(self._root)
        except OSError as error:
            raise ParkFailed(f"{self._root}: {error}") from error
        free = max(disk.f_bavail * disk.f_frsize - RESERVE_BYTES, 0)
        where = f"on the disk of {self._root}"
        if self._bytes_max:
            held = sum(parked.manifest.bytes_written for parked in self._all.values())
            if self._bytes_max - held < free:
                free, where = max(self._bytes_max - held, 0), "of what this node keeps parked"
        if needed > free:
            raise NoRoom(f"parking needs {needed:,} bytes and {free:,} are left {where}")

    def _folder(self, job_id: str) -> Path:
        """The folder of a job. Raises BadOrder for an id that is no plain name."""
        if not _NAME.fullmatch(job_id):
            raise BadOrder(f"job id {job_id[:80]!r} is no plain name")
        folder = self._root / job_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def drop(
        self, job_id: str, before: tuple[int, int], ranks: Iterable[int] | None = None
    ) -> None:
        """Delete what is parked of a job from before that (attempt, generation); of all ranks or some."""
        wanted = None if ranks is None else set(ranks)
        for key, parked in list(self._all.items()):
            about = parked.manifest
            old = (about.attempt, about.generation) < before
            if about.job_id == job_id and old and (wanted is None or about.rank in wanted):
                del self._all[key]
                shutil.rmtree(parked.folder, ignore_errors=True)
                _log.info("parked_state_dropped", job=job_id, rank=about.rank)
        if not any(key[0] == job_id for key in self._all) and _NAME.fullmatch(job_id):
            (self._root / job_id / STORE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something unreadable may still lie there
                (self._root / job_id).rmdir()


def store_kept(order: ParkOrder, host: str, store: StoreServer) -> ParkedStore | None:
    """What standbys of the job are set up with, where it is this node's store that keeps it."""
    ref = order.store
    if (ref.host, ref.port) != (host, store.port):
        return None
    values = store.values_of(ref.prefix, b"setup/")
    return ParkedStore(
        order.job_id, order.attempt, order.generation, ref.prefix, ref.secret, values
    )


def _name_of(record: WorkerRecord) -> str:
    return f"{record.attempt}.{record.generation}.{record.rank}"


def _written(worker: Worker, folder: Path, step: int) -> Callable[[], Parked]:
    """The work of one rank, for a thread: it owns its descriptors, so nobody can close them under it."""
    record, arena = worker.record, worker.custody.arena("live")
    assert arena is not None
    manifest, storages = arena.manifest, arena.duplicate()
    try:
        pages = worker.custody.pages()
    except OSError:
        close_all(storages.values())
        raise

    def write() -> Parked:
        try:
            return rank_written(folder, record, step, pages, manifest, storages)
        finally:
            close_all([*pages.values(), *storages.values()])

    return write


def _check_at_rest(worker: Worker, step: int) -> None:
    header, rank = worker.custody.header, worker.record.rank
    if worker.blocked is None or header is None:
        raise ParkFailed(f"rank {rank} has not stopped")
    at = {name: header.get(name) for name in ("fence", "applying", "applied")}
    if set(at.values()) != {step}:
        raise ParkFailed(f"rank {rank} does not stand at fence {step}: {at}")
    if worker.custody.state != "usable":
        raise ParkFailed(f"the state of rank {rank} is not whole in custody")


def _size_of(worker: Worker) -> int:
    arena = worker.custody.arena("live")
    pages = worker.custody.pages()
    try:
        size = sum(os.fstat(fd).st_size for fd in pages.values())
    finally:
        close_all(pages.values())
    return size + (0 if arena is None else arena.manifest.total_bytes)
