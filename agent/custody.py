"""What the agent holds of one local worker so that its process may die: header, slots, arenas.

Everything is descriptors of shared memory; nothing is copied. Whoever takes a part out of custody gets
descriptors of its own, so that letting go here can never pull memory from under a stream.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from .link import ArenaName, ArenaShared
from .protocol import Position
from .transfer.arena import HEADER_BYTES, Blob, Header, Slots, is_sealed, of_micro_key
from .transfer.errors import ManifestInvalid
from .transfer.manifest import MANIFEST_BYTES_MAX, Manifest

SLOT_NAMES = ("small", "fence", "prepared", "buddy", "buddy_small", "micro")
OF_OTHERS = ("buddy", "buddy_small")
"""What is kept for other ranks: it is filled again by them, and no part of this rank's state."""
PARTS_MAX = 4096
_LENGTH_BYTES = 8

Which = ArenaName
_Key = TypeVar("_Key", int, str)
State = Literal["usable", "unavailable", "none"]


class CustodyRefused(ValueError):
    """A worker sent descriptors that do not make what it said they make."""


@dataclass
class Arena:
    """Storages of one epoch: manifest storage id -> descriptor."""

    epoch: int
    manifest: Manifest
    fds: dict[int, int]

    def duplicate(self) -> dict[int, int]:
        """Descriptors of the same memory, the caller's to close. Raises OSError: none is left open then."""
        return _duplicated(self.fds)

    def close(self) -> None:
        close_all(self.fds.values())
        self.fds = {}


@dataclass
class _Arriving:
    """An arena some of whose parts have come."""

    epoch: int
    parts: int
    manifest_fd: int = -1
    fds: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def close(self) -> None:
        close_all([*self.fds.values(), *([self.manifest_fd] if self.manifest_fd >= 0 else [])])


class Custody:
    """Order of calls: ``take_layout``, ``take_part`` as they come; reads at any time; ``close``."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self._slots: dict[str, Slots] = {}
        self._arenas: dict[Which, Arena] = {}
        self._arriving: dict[Which, _Arriving] = {}
        self.lost = False
        """the agent was restarted and the worker has not shared its memory again"""

    def take_layout(self, fds: list[int]) -> None:
        """Header and slots, in the order of link.Layout. Raises CustodyRefused; owns ``fds``."""
        if len(fds) != 1 + len(SLOT_NAMES) or os.fstat(fds[0]).st_size < HEADER_BYTES:
            close_all(fds)
            raise CustodyRefused("a layout is a header page and six slot pairs")
        if not all(map(is_sealed, fds)):
            # A worker that cut a page short would take the agent down with it (SIGBUS).
            close_all(fds)
            raise CustodyRefused("a page of the layout is not sealed against shrinking")
        try:
            slots = {name: Slots.open(fd) for name, fd in zip(SLOT_NAMES, fds[1:], strict=True)}
            header = Header(fds[0])
        except (OSError, ValueError) as error:
            close_all(fds)
            raise CustodyRefused(f"a slot cannot be mapped: {error}") from error
        self._close_layout()
        self.header, self._slots = header, slots
        self.lost = False

    def take_part(self, message: ArenaShared, fds: list[int]) -> bool:
        """One part of an arena; True when it made the arena whole. Raises CustodyRefused; owns ``fds``."""
        arriving = self._arriving.get(message.which)
        if arriving is None or arriving.epoch != message.epoch:
            if arriving is not None:
                arriving.close()
            arriving = self._arriving[message.which] = _Arriving(message.epoch, message.parts)
        try:
            self._check_part(arriving, message, fds)
            if message.part == 0:
                arriving.manifest_fd, fds = fds[0], fds[1:]
            arriving.fds.update(zip(message.storage_ids, fds, strict=True))
            fds = []
            arriving.seen.add(message.part)
            if len(arriving.seen) < arriving.parts:
                return False
            manifest = _read_manifest(arriving.manifest_fd)
            _check_storages(manifest, arriving.fds)
        except (CustodyRefused, ManifestInvalid, OSError) as error:
            close_all(fds)
            arriving.close()
            del self._arriving[message.which]
            raise CustodyRefused(str(error)) from error
        old = self._arenas.pop(message.which, None)
        if old is not None:
            old.close()
        os.close(arriving.manifest_fd)
        self._arenas[message.which] = Arena(message.epoch, manifest, arriving.fds)
        del self._arriving[message.which]
        return True

    @staticmethod
    def _check_part(arriving: _Arriving, message: ArenaShared, fds: list[int]) -> None:
        wanted = len(message.storage_ids) + (message.part == 0)
        known = arriving.fds.keys() & set(message.storage_ids)
        if not 0 < message.parts <= PARTS_MAX or message.parts != arriving.parts:
            raise CustodyRefused(f"an arena of {message.parts} parts")
        if not 0 <= message.part < message.parts or message.part in arriving.seen:
            raise CustodyRefused(f"part {message.part} of {message.parts} came twice or is none")
        if len(fds) != wanted or known or len(set(message.storage_ids)) != len(message.storage_ids):
            raise CustodyRefused(f"{len(fds)} descriptors where {wanted} belong")

    def keep_arena(self, arena: Arena) -> None:
        """Hold storages that come from elsewhere than the worker; owns them."""
        old = self._arenas.pop("live", None)
        if old is not None:
            old.close()
        self._arenas["live"] = arena

    def pages(self) -> dict[str, int]:
        """Descriptors of the header page and of the rank's own slots by name, the caller's to close.

        Raises OSError: none is left open then.
        """
        if self.header is None:
            return {}
        own = {name: slots.fd for name, slots in self._slots.items() if name not in OF_OTHERS}
        return _duplicated({"header": self.header.fd, **own})

    def arena(self, which: Which) -> Arena | None:
        return self._arenas.get(which)

    @property
    def state(self) -> State:
        """usable: the whole state could be taken from here, torn or not (the position says)."""
        if self.lost:
            return "unavailable"
        if self.header is None:
            return "none"
        return "usable" if self.header.usable and "live" in self._arenas else "unavailable"

    def position(self) -> Position | None:
        """Where the rank stands, with what its slots hold for others; None without a header."""
        if self.header is None or not self._slots:
            return None
        holds: dict[str, list[int]] = {}
        for rank, step in self._slots["buddy"].steps():
            holds.setdefault(str(rank), []).append(step)
        shards: dict[str, list[int]] = {}
        for parity in (0, 1):
            rank, step = self.header.kept_shard(parity)
            if self.kept_shard(rank, step) is not None:
                shards.setdefault(str(rank), []).append(step)
        micro = [of_micro_key(key) for key in self._slots["micro"].marks()]
        kept = {rank: sorted(steps) for rank, steps in shards.items()}
        return msgspec.structs.replace(
            self.header.position(), holds=holds, shards=kept, micro=micro
        )

    def kept_shard(self, rank: int, step: int) -> tuple[Arena, bytes] | None:
        """(arena, small) of another rank at ``step``, kept here as its buddy; None unless it is whole."""
        if self.header is None or step < 0 or self.header.kept_shard(step % 2) != (rank, step):
            return None
        arena = self._arenas.get("buddy1" if step % 2 else "buddy0")
        small = self.blob("buddy_small", step, rank)
        return None if arena is None or small is None else (arena, small.data)

    def mark(self) -> tuple[int, str]:
        """(step, head) of the newest mark of the rank's trail, (-1, "") without one."""
        return self.header.mark() if self.header is not None else (-1, "")

    def blob(self, name: str, step: int, rank: int | None = None) -> Blob | None:
        """The whole blob of ``step`` in a slot pair, None when it is not there or of another rank."""
        slots = self._slots.get(name)
        found = slots.read(step) if slots is not None and step >= 0 else None
        return found if found is not None and rank in (None, found.rank) else None

    def buddy_copy(self, rank: int, step: int) -> tuple[bytes, bytes] | None:
        """(fence of step - 1, prepared of ``step``) kept here for another rank."""
        blob = self.blob("buddy", step, rank)
        if blob is None or len(blob.data) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(blob.data[:_LENGTH_BYTES], "little")
        end = _LENGTH_BYTES + length
        return (blob.data[_LENGTH_BYTES:end], blob.data[end:]) if end <= len(blob.data) else None

    @property
    def num_fds(self) -> int:
        """Descriptors held, for whoever counts leaks."""
        arenas = sum(len(arena.fds) for arena in self._arenas.values())
        return arenas + len(self._slots) + (self.header is not None)

    def close(self) -> None:
        """Let go of everything."""
        self._close_layout()
        for arena in self._arenas.values():
            arena.close()
        for arriving in self._arriving.values():
            arriving.close()
        self._arenas, self._arriving = {}, {}

    def _close_layout(self) -> None:
        if self.header is not None:
            self.header.close()
        for slots in self._slots.values():
            slots.close()
        self.header, self._slots = None, {}


def _read_manifest(fd: int) -> Manifest:
    size = os.fstat(fd).st_size
    if size > MANIFEST_BYTES_MAX:
        raise ManifestInvalid(f"a manifest of {size} bytes")
    return Manifest.decode(os.pread(fd, size, 0))


def _check_storages(manifest: Manifest, fds: dict[int, int]) -> None:
    if {storage.id for storage in manifest.storages} != fds.keys():
        raise CustodyRefused("the descriptors are not those of the manifest's storages")
    for storage in manifest.storages:
        if os.fstat(fds[storage.id]).st_size < storage.bytes:
            raise CustodyRefused(f"storage {storage.id} is shorter than its manifest says")


def _duplicated(fds: Mapping[_Key, int]) -> dict[_Key, int]:
    taken: dict[_Key, int] = {}
    try:
        for key, fd in fds.items():
            taken[key] = os.dup(fd)
    except OSError:
        close_all(taken.values())
        raise
    return taken


def close_all(fds: Iterable[int]) -> None:
    for fd in list(fds):
        os.close(fd)
