"""What workers print, bounded: of a log that has grown too long the last part is put aside."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import structlog

_log = structlog.get_logger("yoco.worker_logs")
LOOK_S = 2.0
"""How often sizes are looked at: what is printed meanwhile comes on top of the bound."""
_COPY_BYTES = 1 << 20


def previous(log: Path) -> Path:
    """Where the part before the present one of a log lies."""
    return log.with_name(f"{log.name}.1")


def tail(log: Path, limit: int) -> bytes:
    """The last ``limit`` bytes that were printed, from both parts. Raises OSError without a log."""
    last = _last(log, limit)
    if len(last) < limit:
        with contextlib.suppress(OSError):
            last = _last(previous(log), limit - len(last)) + last
    return last


def cut(log: Path, bytes_max: int) -> bool:
    """Put the last part of a log aside when it is over half of ``bytes_max``; whether it was.

    The worker has it open to append, so it goes on at the beginning of the emptied file. What it prints
    between the last read and the cut is lost. A disk that takes no copy gets its room back all the same.
    """
    half = bytes_max // 2
    try:
        with log.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= half:
                return False
            file.seek(size - half)
            try:
                _put_aside(file, previous(log), bytes_max)
            finally:
                os.ftruncate(file.fileno(), 0)
    except OSError as error:
        _log.warning("worker_log_not_kept", path=str(log), reason=str(error))
        return False
    return True


class LogKeeper:
    """Looks after the logs of all workers; of one that has ended once more after its end."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._seen: set[Path] = set()

    async def look(self, logs: Iterable[Path]) -> None:
        now = set(logs)
        for log in sorted(self._seen | now):
            if await asyncio.to_thread(cut, log, self._bytes_max):
                _log.info("worker_log_cut", path=str(log))
        self._seen = now


def _put_aside(file: BinaryIO, to: Path, most: int) -> None:
    """Copy from where ``file`` stands to its end, which may still move, but not more than ``most`` bytes."""
    part = to.with_name(f"{to.name}.part")
    copied = 0
    try:
        with part.open("wb") as kept:
            while copied < most and (data := file.read(_COPY_BYTES)):
                kept.write(data)
                copied += len(data)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def _last(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        return file.read()
