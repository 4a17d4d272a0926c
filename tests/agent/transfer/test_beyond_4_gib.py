"""Offsets that need more than 32 bits, in a storage that is mostly holes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .arenas import Arena, Tensor
from .ways import Way

GIB = 1024**3
MARKS = {
    0: b"first",
    2 * GIB - 3: b"over 2 GiB",
    4 * GIB - 3: b"over 4 GiB",
    4 * GIB + 4090: b"last",
}


def _free_bytes() -> int:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


@pytest.mark.skipif(_free_bytes() < 9 * GIB, reason="needs 9 GiB of free memory")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["tcp", "same_host"])
def test_a_storage_beyond_4_gib_arrives_whole(
    kind: str, tmp_path: Path, arena_of: Callable[..., Arena]
) -> None:
    tensors = [Tensor("huge", (4 * GIB + 4096,), "uint8")]
    source, target = arena_of(tensors), arena_of(tensors, numbering=100)
    for position, mark in MARKS.items():
        os.pwrite(source.fds[0], mark, position)
    way = Way(kind, tmp_path)
    report = way.fetch(way.offer(source.source()), target.target(), stall_s=60.0)
    way.close()
    assert report.source_digest == report.target_digest
    assert report.bytes_moved == 4 * GIB + 4096
    landed = {at: os.pread(target.fds[100], len(mark), at) for at, mark in MARKS.items()}
    assert landed == MARKS
