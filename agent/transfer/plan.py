"""Which bytes go where, decided before any moves: frozen, printable, the same on both sides.

Storages are cut along a fixed grid, so that every carrier and both sides digest the same chunks.
Small storages share a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import SchemaMismatch
from .manifest import Manifest, TensorEntry

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes at the same offset of two storages."""

    source_id: int
    target_id: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is sent, digested and checked at once: at most CHUNK_BYTES."""

    index: int
    pieces: tuple[Piece, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    chunks: tuple[Chunk, ...]
    bytes: int

    def of_stream(self, stream: int, streams: int) -> tuple[Chunk, ...]:
        """The chunks that one of several streams carries, in order."""
        return self.chunks[stream::streams]


def make_plan(source: Manifest, target: Manifest) -> Plan:
    """Plan a move. Raises SchemaMismatch, naming the first difference, unless the tensors agree."""
    targets = _storage_pairs(source, target)
    pieces = (
        Piece(storage.id, targets[storage.id], offset, min(CHUNK_BYTES, storage.bytes - offset))
        for storage in source.storages
        for offset in range(0, storage.bytes, CHUNK_BYTES)
    )
    return Plan(tuple(_pack(pieces)), source.total_bytes)


def source_plan(source: Manifest) -> Plan:
    """The source's own view of the same plan."""
    return make_plan(source, source)


def _pack(pieces: Iterator[Piece]) -> Iterator[Chunk]:
    index, held, size = 0, list[Piece](), 0
    for piece in pieces:
        if held and size + piece.bytes > CHUNK_BYTES:
            yield Chunk(index, tuple(held), size)
            index, held, size = index + 1, [], 0
        held.append(piece)
        size += piece.bytes
    if held:
        yield Chunk(index, tuple(held), size)


def _storage_pairs(source: Manifest, target: Manifest) -> dict[int, int]:
    if len(source.tensors) != len(target.tensors):
        raise SchemaMismatch(
            f"the source has {len(source.tensors)} tensors, the target {len(target.tensors)}"
        )
    pairs: dict[int, int] = {}
    for ours, theirs in zip(target.tensors, source.tensors, strict=True):
        _agree(theirs, ours)
        if pairs.setdefault(theirs.storage_id, ours.storage_id) != ours.storage_id:
            raise SchemaMismatch(f"{ours.name}: shares its storage with others on one side only")
    if len(set(pairs.values())) != len(pairs):
        raise SchemaMismatch("tensors share a storage on the target only")
    sizes = {storage.id: storage.bytes for storage in target.storages}
    for storage in source.storages:
        if sizes[pairs[storage.id]] != storage.bytes:
            raise SchemaMismatch(
                f"storage {storage.id} has {storage.bytes} bytes, "
                f"the target's {sizes[pairs[storage.id]]}"
            )
    if source.schema_hash != target.schema_hash:
        raise SchemaMismatch(
            f"schema {source.schema_hash[:32]} is not the target's {target.schema_hash[:32]}"
        )
    return pairs


def _agree(source: TensorEntry, target: TensorEntry) -> None:
    for field in ("name", "role", "shape", "dtype", "strides", "offset_bytes"):
        theirs, ours = getattr(source, field), getattr(target, field)
        if theirs != ours:
            raise SchemaMismatch(
                f"{target.name}: {field} is {theirs!r} at the source, {ours!r} here"
            )
