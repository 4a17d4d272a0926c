"""Showing a file that another process still writes, as it grows."""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path
from typing import BinaryIO

_IN_MODIFY = 0x00000002
_IN_CLOEXEC, _IN_NONBLOCK = 0o2000000, 0o4000
_EVENTS_BYTES = 4096


async def follow(path: Path, ended: asyncio.Event, out: BinaryIO) -> None:
    """Copy ``path`` to ``out`` until ``ended`` is set and all of it was copied."""
    notify = _watch(path)
    loop = asyncio.get_running_loop()
    grown = asyncio.Event()

    def changed() -> None:
        os.read(notify, _EVENTS_BYTES)
        grown.set()

    loop.add_reader(notify, changed)
    ending = asyncio.create_task(ended.wait())
    try:
        with path.open("rb") as file:
            while True:
                last = ending.done()
                grown.clear()
                if os.fstat(file.fileno()).st_size < file.tell():
                    file.seek(0)  # it was cut and begins anew
                while data := file.read(65536):
                    out.write(data)
                out.flush()
                if last:
                    return
                growing = asyncio.create_task(grown.wait())
                await asyncio.wait((ending, growing), return_when=asyncio.FIRST_COMPLETED)
                growing.cancel()
    finally:
        ending.cancel()
        loop.remove_reader(notify)
        os.close(notify)


def _watch(path: Path) -> int:
    """An inotify descriptor that becomes readable when the file grows. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    if libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(fd)
        raise OSError(ctypes.get_errno(), f"inotify_add_watch {path}")
    return int(fd)
