"""Arenas for tests: memfds with known content, and empty ones of the same shape."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

from agent.transfer.manifest import Manifest, StorageEntry, TensorEntry
from agent.transfer.state import BlobName, SourceState, TargetState


@dataclass(frozen=True)
class Tensor:
    """A tensor to be, in storage ``storage``; strides None: contiguous."""

    name: str
    shape: tuple[int, ...] = (16,)
    dtype: str = "float32"
    strides: tuple[int, ...] | None = None
    storage: int = 0
    offset: int = 0

    def entry(self, number: int) -> TensorEntry:
        return TensorEntry.of(
            self.name,
            "parameter",
            shape=self.shape,
            dtype=self.dtype,
            strides=self.strides if self.strides is not None else contiguous(self.shape),
            storage_id=number,
            offset_bytes=self.offset,
        )


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Arena:
    """``numbering`` shifts the storage ids: two agents number their storages as they like."""

    def __init__(self, tensors: Sequence[Tensor], *, numbering: int = 0, slack: int = 0) -> None:
        self.tensors = list(tensors)
        entries = [tensor.entry(tensor.storage + numbering) for tensor in tensors]
        sizes: dict[int, int] = {}
        for entry in entries:
            end = entry.offset_bytes + entry.bytes + slack
            sizes[entry.storage_id] = max(end, sizes.get(entry.storage_id, 0))
        storages = [StorageEntry(each, size) for each, size in sizes.items()]
        self.manifest = Manifest.build(storages, entries)
        self.fds = {each.id: _memory(each.bytes) for each in storages}

    def fill(self, seed: int = 1) -> Arena:
        generator = random.Random(seed)
        for each in self.manifest.storages:
            os.pwrite(self.fds[each.id], generator.randbytes(each.bytes), 0)
        return self

    def content(self) -> list[bytes]:
        """Every storage's bytes, in the manifest's order."""
        return [os.pread(self.fds[each.id], each.bytes, 0) for each in self.manifest.storages]

    def source(
        self, blobs: dict[BlobName, tuple[int, bytes]] | None = None, *, takeable: bool = False
    ) -> SourceState:
        return SourceState(self.manifest, self.fds, blobs or {}, takeable)

    def target(self) -> TargetState:
        return TargetState(self.manifest, self.fds)

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


def _memory(size: int) -> int:
    fd = os.memfd_create("yoco-test", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


MODEL = (
    Tensor("wide", (1500, 1000), storage=0),
    Tensor("wide.bias", (1000,), storage=1),
    Tensor("deep", (700, 1000), "float64", storage=2),
    Tensor("count", (), "int64", storage=3),
)
"""12 MB in four storages: enough for several chunks on several connections."""
