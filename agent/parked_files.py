"""The format of parked state: a rank's whole state as one folder of files.

Header page and the rank's own slots as they were in memory, all storages in one file, and a manifest with a
digest of each file. What it keeps for other ranks is not written: they fill it again. The folder is renamed
into place last, when everything in it is on the disk: one without ``.part`` at its end is whole. Reading
back believes nothing: every byte is digested again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from .custody import OF_OTHERS, SLOT_NAMES, Arena, Custody, CustodyRefused, close_all
from .errors import SourceMissing
from .protocol import RankParked
from .records import WorkerRecord
from .transfer.arena import Slots, sealed_memfd
from .transfer.digest import read_exactly
from .transfer.manifest import Manifest

FORMAT = 1
PAGES = ("header", *SLOT_NAMES)
ARENA, MANIFEST, STORE, UNFINISHED = "arena", "manifest.json", "store.json", ".part"
CHUNK_BYTES = 1024 * 1024


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    digest: str


class ParkedManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose state it is, and what was written. ``arena``: where tensors lie in the storages."""

    format: int
    job_id: str
    attempt: int
    generation: int
    worker_id: str
    rank: int
    step: int
    arena: Manifest
    files: dict[str, FileEntry]

    @property
    def digest(self) -> str:
        """Over everything that was written, and whose it is."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(self))

    @property
    def bytes_written(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


class ParkedStore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What standbys of the job are set up with: keys of the last generation's store."""

    job_id: str
    attempt: int
    generation: int
    prefix: str
    secret: str
    values: list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Parked:
    """One rank on disk."""

    folder: Path
    manifest: ParkedManifest

    def event(self) -> RankParked:
        about = self.manifest
        return RankParked(
            job_id=about.job_id,
            attempt=about.attempt,
            generation=about.generation,
            worker_id=about.worker_id,
            rank=about.rank,
            step=about.step,
            digest=about.digest,
            bytes_written=about.bytes_written,
            folder=str(self.folder),
        )

    def restored(self, *, with_arena: bool) -> Custody:
        """Its state in memory again, the caller's to close. Raises SourceMissing when a byte differs.

        Private state is whole without the arena: a damaged one then costs the storages alone.
        """
        pages: list[int] = []
        storages: dict[int, int] = {}
        custody = Custody()
        try:
            for name in PAGES:
                if name in OF_OTHERS:
                    _into(pages, Slots.total_bytes(0))
                    continue
                size = self.manifest.files[name].bytes
                self._read(name, [(_into(pages, size), size)])
            if with_arena:
                entries = self.manifest.arena.storages
                parts = [(_added(storages, each.id, each.bytes), each.bytes) for each in entries]
                self._read(ARENA, parts)
            layout, pages = pages, []
            custody.take_layout(layout)
            if with_arena:
                custody.keep_arena(Arena(0, self.manifest.arena, storages))
        except (OSError, KeyError, CustodyRefused) as error:
            close_all([*pages, *storages.values()])
            raise SourceMissing(
                self._words(f"cannot be read: {error}"), "parked_damaged"
            ) from error
        except SourceMissing:
            close_all([*pages, *storages.values()])
            raise
        return custody

    def _read(self, name: str, parts: Iterable[tuple[int, int]]) -> None:
        """Copy a file into descriptors, digesting it. Raises SourceMissing, OSError."""
        hasher, entry = xxhash.xxh3_128(), self.manifest.files[name]
        with (self.folder / name).open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != entry.bytes:
                raise SourceMissing(
                    self._words(f"is not whole: its file {name!r} has another length"),
                    "parked_damaged",
                )
            for fd, size in parts:
                offset = 0
                while offset < size:
                    data = file.read(min(CHUNK_BYTES, size - offset))
                    if not data:
                        raise OSError(errno.EIO, f"{name} ended early")
                    hasher.update(data)
                    _write_all(fd, data, offset)
                    offset += len(data)
        if hasher.hexdigest() != entry.digest:
            raise SourceMissing(
                self._words(
                    f"is damaged: its file {name!r} digests to {hasher.hexdigest()}, "
                    f"{entry.digest} was written"
                ),
                "parked_damaged",
            )

    def _words(self, what: str) -> str:
        return f"the parked state of rank {self.manifest.rank} in {self.folder} {what}"


def rank_written(
    folder: Path,
    record: WorkerRecord,
    step: int,
    pages: Mapping[str, int],
    arena: Manifest,
    storages: dict[int, int],
) -> Parked:
    """Write a rank that stands still into ``folder``, replacing what is there. Raises OSError, TransferError:
    nothing is left then."""
    assert record.rank is not None
    part = folder.with_name(folder.name + UNFINISHED)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    try:
        files = {
            name: _file_written(part / name, [(fd, os.fstat(fd).st_size)])
            for name, fd in pages.items()
        }
        sized = [(storages[entry.id], entry.bytes) for entry in arena.storages]
        files[ARENA] = _file_written(part / ARENA, sized)
        manifest = ParkedManifest(
            format=FORMAT,
            job_id=record.job_id,
            attempt=record.attempt,
            generation=record.generation,
            worker_id=record.worker_id,
            rank=record.rank,
            step=step,
            arena=arena,
            files=files,
        )
        _bytes_written(part / MANIFEST, msgspec.json.encode(manifest))
        _synced(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
        _synced(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return Parked(folder, manifest)


def store_written(folder: Path, store: ParkedStore) -> None:
    """Write what standbys are set up with. Raises OSError."""
    path, part = folder / STORE, folder / (STORE + UNFINISHED)
    part.unlink(missing_ok=True)
    _bytes_written(part, msgspec.json.encode(store))
    part.rename(path)
    _synced(folder)


def rank_found(folder: Path) -> Parked | None:
    """What an earlier run wrote; None in another format. Raises OSError, DecodeError, TransferError."""
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ParkedManifest)
    manifest.arena.check()
    return Parked(folder, manifest) if manifest.format == FORMAT else None


def _file_written(path: Path, sources: Iterable[tuple[int, int]]) -> FileEntry:
    """Copy the first bytes of each descriptor into one file, digested and on the disk."""
    hasher, total = xxhash.xxh3_128(), 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with path.open("xb", buffering=0) as file:
        for fd, size in sources:
            offset = 0
            while offset < size:
                view = buffer[: min(CHUNK_BYTES, size - offset)]
                read_exactly(fd, view, offset)
                hasher.update(view)
                _write_all(file.fileno(), view, total + offset)
                offset += len(view)
            total += size
        os.fsync(file.fileno())
    return FileEntry(total, hasher.hexdigest())


def _bytes_written(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def _synced(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _into(pages: list[int], size: int) -> int:
    pages.append(sealed_memfd("yoco-parked", size))
    return pages[-1]


def _added(storages: dict[int, int], storage_id: int, size: int) -> int:
    storages[storage_id] = sealed_memfd("yoco-parked", size)
    return storages[storage_id]
