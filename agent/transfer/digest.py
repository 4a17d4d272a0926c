"""xxh3-128 over a state: one digest per chunk as the bytes pass, then one over those.

Equal on both sides proves the copy, not the source. It finds damage, it is no signature: streams
are authenticated by their secret and, off loopback, by TLS.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence

import xxhash

from .errors import SourceUnavailable
from .manifest import Manifest
from .plan import CHUNK_BYTES, Chunk, Plan

DIGEST_BYTES = 16
_BLOB = struct.Struct("<16sqQ16s")
_MEMORY = struct.Struct("<QQQQ")


def bytes_digest(data: bytes | bytearray | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)


def views_digest(views: Iterable[memoryview]) -> bytes:
    """Digest of several runs of memory as if they were one."""
    hasher = xxhash.xxh3_128()
    for view in views:
        hasher.update(view)
    return hasher.digest()


def read_chunk(chunk: Chunk, fds: Mapping[int, int], into: memoryview) -> memoryview:
    """Copy a chunk out of its storages. Raises SourceUnavailable when one is shorter than it says.

    Read, not mapped: a storage that its owner shrinks would end a process that maps it.
    """
    position = 0
    for piece in chunk.pieces:
        read_exactly(fds[piece.source_id], into[position : position + piece.bytes], piece.offset)
        position += piece.bytes
    return into[:position]


def read_exactly(fd: int, into: memoryview, offset: int) -> None:
    position = 0
    while position < len(into):
        with into[position:] as rest:
            count = os.preadv(fd, [rest], offset + position)
        if count == 0:
            raise SourceUnavailable(f"a storage ends at {offset + position}, {len(into)} wanted")
        position += count


def state_digest(
    schema_hash: str, chunks: Sequence[bytes], blobs: Mapping[str, tuple[int, int, bytes]]
) -> str:
    """One hexadecimal digest for storages and blobs; ``blobs``: name -> (step, bytes, digest)."""
    hasher = xxhash.xxh3_128(schema_hash.encode())
    for chunk in chunks:
        hasher.update(chunk)
    for name in sorted(blobs):
        step, size, digest = blobs[name]
        hasher.update(_BLOB.pack(name.encode(), step, size, digest))
    return hasher.hexdigest()


def storages_digests(plan: Plan, fds: Mapping[int, int]) -> list[bytes]:
    """The digest of every chunk, read from storages at rest."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    return [bytes_digest(read_chunk(chunk, fds, buffer)) for chunk in plan.chunks]


def identity_digest(manifest: Manifest, fds: Mapping[int, int]) -> bytes:
    """Digest of which memory it is (device, inode, size), not of what is in it."""
    hasher = xxhash.xxh3_128(b"identity")
    for position, storage in enumerate(manifest.storages):
        if storage.bytes:
            stat = os.fstat(fds[storage.id])
            hasher.update(_MEMORY.pack(position, stat.st_dev, stat.st_ino, storage.bytes))
    return hasher.digest()
