"""The storages of one arena, mapped once and used for many transfers."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

from .errors import SourceUnavailable
from .manifest import Manifest
from .plan import Chunk


class Views(list[memoryview]):
    """The memory of one chunk. Leaving the ``with`` block lets go of it, whatever an error still holds."""

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *_: object) -> None:
        for view in self:
            view.release()


class Memory:
    """Mapped storages by id. Mapping touches every page: 0.1 to 0.4 s a gigabyte, so do it ahead.

    The descriptors stay the caller's and may be closed afterwards. Whoever shrinks mapped memory ends this
    process, as with header pages and slots: workers of one node trust its agent and the reverse.
    """

    def __init__(self, manifest: Manifest, fds: Mapping[int, int], *, writable: bool) -> None:
        """Raises SourceUnavailable when a storage is missing or shorter than the manifest says."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._maps: dict[int, mmap.mmap] = {}
        for storage in manifest.storages:
            check_storage(fds, storage.id, storage.bytes)
            if storage.bytes:
                self._maps[storage.id] = mmap.mmap(
                    fds[storage.id],
                    storage.bytes,
                    mmap.MAP_SHARED | mmap.MAP_POPULATE,
                    protection,
                )

    def source_views(self, chunk: Chunk) -> Views:
        """Where a chunk comes from."""
        return Views(
            memoryview(self._maps[piece.source_id])[piece.offset : piece.offset + piece.bytes]
            for piece in chunk.pieces
        )

    def target_views(self, chunk: Chunk) -> Views:
        """Where a chunk goes."""
        return Views(
            memoryview(self._maps[piece.target_id])[piece.offset : piece.offset + piece.bytes]
            for piece in chunk.pieces
        )

    def close(self) -> None:
        while self._maps:
            self._maps.popitem()[1].close()


def check_storage(fds: Mapping[int, int], storage_id: int, size: int) -> None:
    """Raise SourceUnavailable unless the storage is there and as large as it says."""
    fd = fds.get(storage_id)
    if fd is None or os.fstat(fd).st_size < size:
        raise SourceUnavailable(f"storage {storage_id} is missing or shorter than it says")
