"""The state that is moved: ``tensors`` equal float32 tensors, each in shared memory of its own."""

from __future__ import annotations

import mmap
import os
import resource
from dataclasses import dataclass
from typing import Any

import xxhash

from agent.transfer.manifest import Manifest, StorageEntry, TensorEntry

_BLOCK_BYTES = (1 << 20) + 4096
FEW, MANY = 8, 4000


@dataclass(frozen=True)
class Shape:
    """How much, in how many tensors."""

    bytes: int
    tensors: int

    @property
    def each(self) -> int:
        return self.bytes // self.tensors // 4 * 4


class Held:
    """One process's copy: descriptors and mapped pages. ``fill``: random bytes, else zeros."""

    def __init__(self, shape: Shape, *, fill: bool) -> None:
        self.shape = shape
        self.manifest = manifest_of(shape)
        self.fds = {storage.id: _memory(storage.bytes) for storage in self.manifest.storages}
        self.maps = {
            each: mmap.mmap(fd, shape.each, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            for each, fd in self.fds.items()
        }
        self.write(os.urandom(_BLOCK_BYTES) if fill else bytes(_BLOCK_BYTES))

    @property
    def bytes(self) -> int:
        return self.manifest.total_bytes

    def write(self, block: bytes) -> None:
        """Every page of it, with ``block`` over and over."""
        position = 0
        for page in self.maps.values():
            at = 0
            while at < len(page):
                start = position % len(block)
                size = min(len(block) - start, len(page) - at)
                page[at : at + size] = block[start : start + size]
                at, position = at + size, position + size

    def clear(self) -> None:
        self.write(bytes(_BLOCK_BYTES))

    def tensors(self) -> dict[str, Any]:
        """The same memory as torch sees it."""
        import torch

        return {
            f"layer.{each}": torch.frombuffer(page, dtype=torch.float32)
            for each, page in self.maps.items()
        }

    def digest(self) -> str:
        return digest_of(self.maps.values())

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.maps.clear()  # each is unmapped once the last tensor over it has gone


def digest_of(parts: Any) -> str:
    """Of anything whose items are buffers, one after the other."""
    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def tensors_digest(tensors: dict[str, Any]) -> str:
    ordered = (tensors[f"layer.{index}"] for index in range(len(tensors)))
    return digest_of(tensor.numpy() for tensor in ordered)


def manifest_of(shape: Shape) -> Manifest:
    return Manifest.build(
        [StorageEntry(index, shape.each) for index in range(shape.tensors)],
        [
            TensorEntry.of(
                f"layer.{index}", "parameter", shape=(shape.each // 4,), dtype="float32",
                strides=(1,), storage_id=index,
            )
            for index in range(shape.tensors)
        ],
    )  # fmt: skip


def allow_many_descriptors() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _memory(size: int) -> int:
    fd = os.memfd_create("yoco-bench", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd
