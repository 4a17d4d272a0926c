"""The shared memory in which a rank's state outlives its process: header page and slots.

Written by the worker, mapped by its agent. Nothing here needs torch. A slot pair holds two blobs, one per
step parity, so that the blob of the step before stays whole while the next one is written; a blob is valid
only when its marker, written last, matches.

Order of writes in one step n + 1 (docs/engine.md):
    fence.write(n) -> header.set_head(n) -> header.fence = n -> ... backward ...
    -> prepared.write(n + 1) -> header.prepared = n + 1 -> vote
    -> header.applying = n + 1 -> optimizer -> small.write(n + 1) -> header.applied = n + 1 -> tail
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass

import xxhash

from ..protocol import Position

_MAGIC = 0x59_4F_43_4F_31  # "YOCO1"
_FIELDS = (
    "magic", "generation", "fence", "prepared", "applying", "applied", "has_gradients", "shadow",
    "unclean", "phase", "phase_since_ns", "collective",
    "head_step_0", "head_high_0", "head_low_0", "head_step_1", "head_high_1", "head_low_1",
    "head_step_mark", "head_high_mark", "head_low_mark",
    "beat_ns", "usual_ns", "num_groups",
    "buddy_rank_0", "buddy_step_0", "buddy_rank_1", "buddy_step_1",
    "drawn_step", "drawn", "drawn_high", "drawn_low",
)  # fmt: skip
MARK_EVERY = 16
"""At every so many steps a trail's head is a mark: told with heartbeats, remembered by the trail itself."""
_HEAD = struct.Struct("<qq")
_OFFSET = {name: 8 * index for index, name in enumerate(_FIELDS)}
HEADER_BYTES = 4096
_GROUPS_AT = 128
"""First int64 of the table of groups: four for each, see ``GroupTally``."""
GROUPS_MAX = 64
UNNUMBERED = -1
"""Pending, and with no number that others could be compared by: a send or a receive."""


_MICRO_BITS = 20


def micro_key(step: int, micro: int) -> int:
    """What the state after micro-batch ``micro`` of ``step`` is kept under: parity is the micro-batch's."""
    if not 0 < micro < 1 << _MICRO_BITS:
        raise ValueError(f"a step of {micro} micro-batches")
    return (step << _MICRO_BITS) | micro


def of_micro_key(key: int) -> tuple[int, int]:
    """(step, micro-batch)."""
    return key >> _MICRO_BITS, key & ((1 << _MICRO_BITS) - 1)


def sealed_memfd(name: str, size_bytes: int) -> int:
    """Shared memory whose size is final: whoever maps it cannot have it cut away under its feet."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def is_sealed(fd: int) -> bool:
    """Whether this memory can never shrink. False for what is no memfd."""
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


class Phase:
    """What a rank is doing, for whoever must judge a hang."""

    SETUP, DATA, FORWARD, VOTE, APPLY, TAIL, BLOCKED, STANDBY, DONE = range(9)
    EVALUATING, SAVING, COMPILING = range(9, 12)
    WORDS = (
        "setup", "data", "forward", "vote", "apply", "tail", "blocked", "standby", "done",
        "evaluating", "saving", "compiling",
    )  # fmt: skip


@dataclass(frozen=True)
class GroupTally:
    """Where a rank stands in one of its process groups, in one generation.

    ``key`` is the same on all members of the group. ``issued`` counts collectives from 1. ``pending`` is the
    number of the oldest unfinished one, 0 without any, ``UNNUMBERED`` for one that is not counted.
    """

    key: int
    issued: int
    pending: int


class Header:
    """One page of int64 fields. A store is one aligned 8-byte write: readers never see half a value."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, HEADER_BYTES)
        self._view = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> Header:
        header = cls(sealed_memfd("yoco-header", HEADER_BYTES))
        counts = ("fence", "prepared", "applying", "applied", "shadow", "drawn_step")
        kept = ("buddy_rank_0", "buddy_step_0", "buddy_rank_1", "buddy_step_1")
        for name in (*counts, *kept, "head_step_0", "head_step_1", "head_step_mark"):
            header.set(name, -1)
        header.set("unclean", 1)
        header.set("magic", _MAGIC)
        return header

    def get(self, name: str) -> int:
        return self._view[_OFFSET[name] // 8]

    def set(self, name: str, value: int) -> None:
        self._view[_OFFSET[name] // 8] = value

    def group_slot(self, key: int) -> memoryview | None:
        """Where one group's tally is written, [key, issued, pending]; None when the table is full."""
        number = self.get("num_groups")
        if number >= GROUPS_MAX:
            return None
        at = _GROUPS_AT + 4 * number
        slot = self._view[at : at + 3]
        slot[0] = key
        self.set("num_groups", number + 1)
        return slot

    def groups(self) -> list[GroupTally]:
        """Every group's tally, as it is now."""
        number = min(max(self.get("num_groups"), 0), GROUPS_MAX)
        places = (_GROUPS_AT + 4 * index for index in range(number))
        return [GroupTally(*self._view[at : at + 3]) for at in places]

    @property
    def usable(self) -> bool:
        """False until the agent holds every storage the optimizer writes."""
        return self.get("magic") == _MAGIC and self.get("unclean") == 0

    def set_head(self, step: int, head: str) -> None:
        """Keep the trail's head (32 hex digits) at ``step``, by step parity; a mark has its own place."""
        self._set_head(str(step % 2), step, head)
        if step % MARK_EVERY == 0:
            self._set_head("mark", step, head)

    def _set_head(self, place: str, step: int, head: str) -> None:
        """The step is written last."""
        self.set(f"head_step_{place}", -1)
        high, low = _HEAD.unpack(bytes.fromhex(head))
        self.set(f"head_high_{place}", high)
        self.set(f"head_low_{place}", low)
        self.set(f"head_step_{place}", step)

    def head(self, step: int) -> str:
        """The trail's head at ``step``, "" when it is not (or no longer) kept here."""
        kept, head = self._head(str(step % 2))
        return head if kept == step else ""

    def mark(self) -> tuple[int, str]:
        """(step, head) of the newest mark; (-1, "") when there is none, or one is just being written."""
        return self._head("mark")

    def _head(self, place: str) -> tuple[int, str]:
        step = self.get(f"head_step_{place}")
        parts = self.get(f"head_high_{place}"), self.get(f"head_low_{place}")
        # A rank that went on meanwhile has put its next head here.
        if step < 0 or self.get(f"head_step_{place}") != step:
            return -1, ""
        return step, _HEAD.pack(*parts).hex()

    def kept_shard(self, parity: int) -> tuple[int, int]:
        """(rank, step) of the whole arena kept for another rank under this step parity; -1 without one."""
        return self.get(f"buddy_rank_{parity}"), self.get(f"buddy_step_{parity}")

    def set_drawn(self, step: int, batches: int, batch_hash: str) -> None:
        """Keep what running ``step`` has drawn so far and its hash ("" without a loader); step is last."""
        self.set("drawn_step", -1)
        high, low = _HEAD.unpack(bytes.fromhex(batch_hash)) if batch_hash else (0, 0)
        self.set("drawn", batches)
        self.set("drawn_high", high)
        self.set("drawn_low", low)
        self.set("drawn_step", step)

    def _drawn_hash(self) -> str:
        parts = self.get("drawn_high"), self.get("drawn_low")
        return _HEAD.pack(*parts).hex() if any(parts) else ""

    def position(self) -> Position:
        fence = self.get("fence")
        drawn_step = self.get("drawn_step")
        return Position(
            fence=fence,
            prepared=self.get("prepared"),
            applying=self.get("applying"),
            applied=self.get("applied"),
            has_gradients=bool(self.get("has_gradients")),
            shadow=self.get("shadow"),
            trail_head=self.head(fence),
            drawn_step=drawn_step,
            drawn=self.get("drawn") if drawn_step >= 0 else 0,
            drawn_hash=self._drawn_hash() if drawn_step >= 0 else "",
        )

    def close(self) -> None:
        self._view.release()
        self._map.close()
        os.close(self.fd)


@dataclass(frozen=True)
class Blob:
    """One valid blob of a slot pair. ``rank`` is whose state it is, ``step`` the step it belongs to."""

    rank: int
    step: int
    data: bytes


_SLOT = struct.Struct(
    "<qqqq16s"
)  # marker, rank, step, length, xxh3-128; marker == step + 1 when valid


class Slots:
    """Two blobs, by step parity. ``write`` returns False when the blob does not fit: make a larger pair."""

    def __init__(self, fd: int, capacity_bytes: int) -> None:
        self.fd = fd
        self.capacity_bytes = capacity_bytes
        self._map = mmap.mmap(fd, self.total_bytes(capacity_bytes))

    @staticmethod
    def total_bytes(capacity_bytes: int) -> int:
        return 2 * (_SLOT.size + capacity_bytes)

    @classmethod
    def create(cls, name: str, capacity_bytes: int) -> Slots:
        fd = sealed_memfd(f"yoco-{name}", cls.total_bytes(capacity_bytes))
        return cls(fd, capacity_bytes)

    @classmethod
    def open(cls, fd: int) -> Slots:
        """Map a pair made elsewhere; its size is the memfd's."""
        return cls(fd, os.fstat(fd).st_size // 2 - _SLOT.size)

    def _base(self, step: int) -> int:
        return (step % 2) * (_SLOT.size + self.capacity_bytes)

    def write(self, rank: int, step: int, data: bytes | bytearray | memoryview) -> bool:
        size = len(data)
        if size > self.capacity_bytes:
            return False
        base = self._base(step)
        struct.pack_into("<q", self._map, base, 0)
        start = base + _SLOT.size
        self._map[start : start + size] = data
        digest = xxhash.xxh3_128_digest(data)
        _SLOT.pack_into(self._map, base, 0, rank, step, size, digest)
        struct.pack_into("<q", self._map, base, step + 1)
        return True

    def read(self, step: int) -> Blob | None:
        """The blob of ``step`` if it is whole, else None."""
        blob = self._read_at(self._base(step))
        return blob if blob is not None and blob.step == step else None

    def steps(self) -> list[tuple[int, int]]:
        """(rank, step) of every whole blob here, oldest first."""
        blobs = (self._read_at(self._base(parity)) for parity in (0, 1))
        return sorted(((b.rank, b.step) for b in blobs if b is not None), key=lambda pair: pair[1])

    def marks(self) -> list[int]:
        """Steps whose blobs were written to their end, by their markers alone: nothing is digested."""
        found = (_SLOT.unpack_from(self._map, self._base(parity)) for parity in (0, 1))
        return sorted(
            step for marker, _rank, step, _length, _digest in found if 0 < marker == step + 1
        )

    def _read_at(self, base: int) -> Blob | None:
        marker, rank, step, size, digest = _SLOT.unpack_from(self._map, base)
        if marker != step + 1 or marker <= 0 or not 0 <= size <= self.capacity_bytes:
            return None
        start = base + _SLOT.size
        data = bytes(self._map[start : start + size])
        return Blob(rank, step, data) if xxhash.xxh3_128_digest(data) == digest else None

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
