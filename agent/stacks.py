"""The stacks of a process that hangs: what it was doing, recorded before it is ended.

py-spy reads another process's memory, so that a stopped one and one whose GIL is held can be seen. Without
it the process is asked by a signal, which only one that still runs can follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from pathlib import Path

from . import sessions
from .link import STACKS_SIGNAL
from .workers import Worker

STACKS_CHARACTERS_MAX = 16_000
_PY_SPY_S = 5.0
_SIGNAL_S = 1.0
_LOOK_S = 0.05


async def stacks_of(worker: Worker) -> str:
    """The stacks of all threads as text of bounded length, its first line naming how they were taken;
    words when there are none. Never raises."""
    spied, why = await _py_spy(worker.record.pid)
    if spied:
        return _bounded(f"py-spy dump\n{spied}")
    said = await _asked(worker)
    if said:
        return _bounded(f"faulthandler ({why})\n{said}")
    return _bounded(f"no stacks: {why}; the process did not follow a signal")


def _bounded(text: str) -> str:
    plain = "".join(c for c in text if c.isprintable() or c == "\n").strip()
    if len(plain) <= STACKS_CHARACTERS_MAX:
        return plain
    return plain[:STACKS_CHARACTERS_MAX] + "\n(cut here)"


def _program() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


async def _py_spy(pid: int) -> tuple[str, str]:
    """(stacks, why there are none)."""
    program = _program()
    if program is None:
        return "", "py-spy is not installed"
    try:
        # It does not move: there is no need to stop it for the look.
        process = await asyncio.create_subprocess_exec(
            program, "dump", "--nonblocking", "--pid", str(pid),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return "", f"py-spy: {error}"
    try:
        async with asyncio.timeout(_PY_SPY_S):
            out, errors = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return "", f"py-spy took longer than {_PY_SPY_S:g} s"
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        return "", f"py-spy: {lines[0] if lines else 'failed'}"
    return out.decode(errors="replace"), ""


async def _asked(worker: Worker) -> str:
    """What the process writes to its output when it is asked for its stacks."""
    if not worker.alive or not worker.record.joined:
        return ""  # it has not registered the signal, which would end it
    log = Path(worker.record.log)
    before = _size(log)
    sessions.send(worker.pidfd, STACKS_SIGNAL)
    for _ in range(int(_SIGNAL_S / _LOOK_S)):
        await asyncio.sleep(_LOOK_S)
        if _read(log, before):
            await asyncio.sleep(_LOOK_S)  # the rest of it
            return _read(log, before).decode(errors="replace")
    return ""


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _read(log: Path, start: int) -> bytes:
    try:
        with log.open("rb") as file:
            # A log that was cut meanwhile begins anew.
            file.seek(start if start <= file.seek(0, os.SEEK_END) else 0)
            return file.read(4 * STACKS_CHARACTERS_MAX)
    except OSError:
        return b""
