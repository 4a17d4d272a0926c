"""What an arena holds: storages, and the tensors that lie in them. No torch, no bytes.

A manifest comes from a worker or from a peer, so ``decode`` believes nothing: every tensor must lie
inside its storage, ids and names are unique, sizes are bounded. Tensors may overlap inside one
storage (tied weights, views): whole storages are moved, never tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import xxhash

from .errors import ManifestInvalid

MANIFEST_BYTES_MAX = 64 * 1024 * 1024
STORAGE_BYTES_MAX = 1 << 46
DIMENSIONS_MAX = 64
NAME_CHARACTERS_MAX = 4096

ITEM_BYTES: dict[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4,
    "uint64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
    "quint8": 1, "qint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1,
    "bits1x8": 1, "bits2x4": 1, "bits4x2": 1, "bits8": 1, "bits16": 2,
    **{f"int{bits}": 1 for bits in range(1, 8)}, **{f"uint{bits}": 1 for bits in range(1, 8)},
}  # fmt: skip
"""Bytes of one element, by torch's name of the dtype without ``torch.``."""


def span_bytes(shape: Sequence[int], strides: Sequence[int], dtype: str) -> int:
    """Bytes from a tensor's first element to its last, both included; 0 when it has none.

    Strides count elements. Raises ManifestInvalid for an unknown dtype.
    """
    item = ITEM_BYTES.get(dtype)
    if item is None:
        raise ManifestInvalid(f"unknown dtype {dtype[:64]!r}")
    if any(size == 0 for size in shape):
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * item


class StorageEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One block of memory that is moved whole. ``id`` is the owner's own number for it."""

    id: int
    bytes: int


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor inside a storage.

    ``role`` says whose it is (parameter, buffer, optimizer ...); ``dtype`` is torch's name without
    ``torch.``; ``strides`` count elements, ``offset_bytes`` from the start of the storage;
    ``bytes`` is
    ``span_bytes``: from the first element to the last.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    storage_id: int
    offset_bytes: int
    bytes: int

    @classmethod
    def of(
        cls,
        name: str,
        role: str,
        *,
        shape: Sequence[int],
        dtype: str,
        strides: Sequence[int],
        storage_id: int,
        offset_bytes: int = 0,
    ) -> TensorEntry:
        """An entry whose ``bytes`` follow from the rest."""
        span = span_bytes(shape, strides, dtype)
        return cls(name, role, tuple(shape), dtype, tuple(strides), storage_id, offset_bytes, span)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An arena in words. ``schema_hash`` is equal where two arenas can take each other's bytes."""

    schema_hash: str = ""
    storages: tuple[StorageEntry, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()

    @classmethod
    def build(
        cls,
        storages: Sequence[StorageEntry],
        tensors: Sequence[TensorEntry],
        *,
        extra: str = "",
    ) -> Manifest:
        """A checked manifest; its schema hash covers the tensors and ``extra`` (optimizers ...)."""
        manifest = cls(schema_hash_of(tensors, extra=extra), tuple(storages), tuple(tensors))
        manifest.check()
        return manifest

    @property
    def total_bytes(self) -> int:
        """Size of all storages together."""
        return sum(storage.bytes for storage in self.storages)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Manifest:
        """Read and check. Raises ManifestInvalid, whatever the bytes are."""
        if len(data) > MANIFEST_BYTES_MAX:
            raise ManifestInvalid(f"a manifest of {len(data)} bytes")
        try:
            manifest = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ManifestInvalid(f"not a manifest: {error}") from error
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise ManifestInvalid unless every tensor lies in its storage and nothing comes twice."""
        if len(self.schema_hash) > 128:
            raise ManifestInvalid("schema hash of more than 128 characters")
        sizes: dict[int, int] = {}
        for storage in self.storages:
            if storage.id in sizes or storage.id < 0:
                raise ManifestInvalid(f"storage {storage.id} is negative or there twice")
            if not 0 <= storage.bytes <= STORAGE_BYTES_MAX:
                raise ManifestInvalid(f"storage {storage.id} of {storage.bytes} bytes")
            sizes[storage.id] = storage.bytes
        names: set[tuple[str, str]] = set()
        for tensor in self.tensors:
            if (tensor.role, tensor.name) in names:
                raise ManifestInvalid(f"{tensor.role} {tensor.name[:200]!r} is there twice")
            names.add((tensor.role, tensor.name))
            _check_tensor(tensor, sizes)
        unused = sizes.keys() - {tensor.storage_id for tensor in self.tensors}
        if unused:
            raise ManifestInvalid(f"no tensor lies in storage {min(unused)}")


def _check_tensor(tensor: TensorEntry, sizes: dict[int, int]) -> None:
    where = f"{tensor.role[:64]} {tensor.name[:200]!r}"
    if len(tensor.name) > NAME_CHARACTERS_MAX or len(tensor.role) > 64:
        raise ManifestInvalid(f"{where}: name too long")
    if len(tensor.shape) != len(tensor.strides) or len(tensor.shape) > DIMENSIONS_MAX:
        raise ManifestInvalid(f"{where}: {len(tensor.shape)} sizes, {len(tensor.strides)} strides")
    if any(n < 0 for n in (*tensor.shape, *tensor.strides, tensor.offset_bytes)):
        raise ManifestInvalid(f"{where}: negative size, stride or offset")
    if math.prod(tensor.shape) > STORAGE_BYTES_MAX:
        raise ManifestInvalid(f"{where}: more elements than any storage has bytes")
    span = span_bytes(tensor.shape, tensor.strides, tensor.dtype)
    if tensor.bytes != span:
        raise ManifestInvalid(f"{where}: says {tensor.bytes} bytes, spans {span}")
    size = sizes.get(tensor.storage_id)
    if size is None:
        raise ManifestInvalid(f"{where}: lies in storage {tensor.storage_id}, which does not exist")
    if tensor.offset_bytes + span > size:
        raise ManifestInvalid(
            f"{where}: ends at {tensor.offset_bytes + span}, beyond its storage of {size} bytes"
        )


def schema_hash_of(tensors: Sequence[TensorEntry], *, extra: str = "") -> str:
    """Hash over what must agree between two arenas: everything but the owners' storage numbers."""
    order: dict[int, int] = {}
    described = [
        (
            tensor.name, tensor.role, tensor.shape, tensor.dtype, tensor.strides,
            order.setdefault(tensor.storage_id, len(order)), tensor.offset_bytes,
        )
        for tensor in tensors
    ]  # fmt: skip
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode([extra, described]))
