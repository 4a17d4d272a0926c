"""The arena: large storages that only the optimizer writes, moved in place into shared memory.

Descriptors belong to their storages and are only lent: they stay valid while the storage lives. Everything
smaller than ``LARGE_BYTES`` is packed into blobs instead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..transfer.manifest import Manifest, StorageEntry, TensorEntry
from .locality import dtype_name
from .refusals import Unprotectable

if TYPE_CHECKING:
    from .catalogue import Held

LARGE_BYTES = 64 * 1024
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class ArenaChange:
    """A whole new picture of the arena. ``fds`` are lent, one per id in ``storage_ids``."""

    epoch: int
    manifest: Manifest
    storage_ids: list[int]
    fds: list[int]


def is_large(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() >= LARGE_BYTES


class Arena:
    """Keeps large storages in shared memory and knows which those are."""

    def __init__(self) -> None:
        self.epoch = 0
        self.outdated = False
        """the last picture is wrong although every tensor lies where it did"""
        self.manifest: Manifest | None = None
        self._ids: dict[int, int] = {}
        self._next_id = 0
        self._pointers: list[int] = []
        self._large: list[torch.Tensor] = []

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages().values())

    def storages(self) -> dict[int, torch.UntypedStorage]:
        """Storage id -> storage, as of the last ``rehome``."""
        return {self._ids[_pointer(t)]: t.untyped_storage() for t in self._large}

    def unchanged(self) -> bool:
        """True while the last picture says where every tensor lies."""
        return not self.outdated and [t.data_ptr() for t in self._large] == self._pointers

    def holds(self, large: Sequence[Held]) -> bool:
        """True when the last picture shows exactly these tensors."""
        return len(large) == len(self._large) and all(
            item.tensor is tensor for item, tensor in zip(large, self._large, strict=True)
        )

    def rehome(self, large: Sequence[Held], extra: str) -> ArenaChange:
        """Move what is not there yet and give the whole picture. ``extra`` goes into the schema hash.

        Raises Unprotectable (``shared_memory_short``) before anything moves when it would not fit.
        """
        for item in large:
            if item.tensor.device.type != "cpu":
                raise Unprotectable("tensor_device", "custody of CUDA tensors is not available yet")
        storages = {_pointer(item.tensor): item.tensor.untyped_storage() for item in large}
        check_room(sum(s.nbytes() for s in storages.values() if not s.is_shared()))
        fds: dict[int, int] = {}
        kept: dict[int, int] = {}
        for storage in storages.values():
            fd, _size = storage._share_fd_cpu_()
            pointer = storage.data_ptr()
            if pointer not in self._ids:
                self._ids[pointer] = self._next_id
                self._next_id += 1
            kept[pointer] = self._ids[pointer]
            fds[self._ids[pointer]] = fd
        self._ids = kept
        self._large = [item.tensor for item in large]
        self._pointers = [tensor.data_ptr() for tensor in self._large]
        self.epoch += 1
        self.outdated = False
        entries = [StorageEntry(i, storage.nbytes()) for i, storage in self.storages().items()]
        self.manifest = Manifest.build(entries, [self._entry(i) for i in large], extra=extra)
        return ArenaChange(self.epoch, self.manifest, list(fds), list(fds.values()))

    def _entry(self, item: Held) -> TensorEntry:
        tensor = item.tensor
        return TensorEntry.of(
            item.name,
            item.role,
            shape=tensor.shape,
            dtype=dtype_name(tensor),
            strides=tensor.stride(),
            storage_id=self._ids[_pointer(tensor)],
            offset_bytes=int(tensor.storage_offset()) * tensor.element_size(),
        )


def _pointer(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def check_room(need: int) -> None:
    """Raise Unprotectable when ``need`` bytes of shared memory are not free."""
    room = os.statvfs(SHARED_MEMORY)
    free = room.f_bavail * room.f_frsize
    if need > free:
        raise Unprotectable(
            "shared_memory_short",
            f"{need / 1e6:.0f} MB of shared memory are needed for this rank's state and "
            f"{free / 1e6:.0f} MB are free in {SHARED_MEMORY}: enlarge it (containers default to 64 MB)",
        )
