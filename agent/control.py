"""The daemon's own door on this machine: a unix socket that only the agent's user may open.

One JSON object a line. A request gets one reply, ``exec`` further ones until the process has ended.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from .errors import AgentError
from .link import short_path
from .links import listen
from .protocol import Position

CONTROL_SOCKET = "control.sock"
NEVER_JOINED = "not protected: script never joined"
LINE_BYTES_MAX = 1024 * 1024


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything on the control socket."""


class StatusRequest(ControlMessage, tag="status", frozen=True, kw_only=True):
    pass


class ExecRequest(ControlMessage, tag="exec", frozen=True, kw_only=True):
    """Run a command as a local job. The platform does not hear of it."""

    command: list[str]
    working_directory: str
    environment: dict[str, str]
    join_s: float


class StopRequest(ControlMessage, tag="stop", frozen=True, kw_only=True):
    """End a worker that ``exec`` started."""

    worker_id: str


class WorkerView(ControlMessage, frozen=True, kw_only=True):
    """A worker in ``status``. ``protection`` says in words what it could lose."""

    worker_id: str
    job_id: str
    generation: int
    rank: int | None
    pid: int
    state: str
    custody: str
    position: Position | None
    held_descriptors: int
    protection: str
    local: bool
    log: str


class Status(ControlMessage, tag="status_is", frozen=True, kw_only=True):
    node: str
    cluster: str
    platform: str
    boot_id: str
    runs_as_root: bool
    workers: list[WorkerView]
    spool_length: int
    spool_refused: int
    points_dropped: int
    orders_running: int
    last_contact_s: float | None
    """seconds since the platform last answered, None: never"""
    last_error: str
    doorbell: bool
    store_port: int
    data_port: int
    stream_encryption: str


class Started(ControlMessage, tag="started", frozen=True, kw_only=True):
    worker_id: str
    pid: int
    log: str


class NeverJoined(ControlMessage, tag="never_joined", frozen=True, kw_only=True):
    """The script ran for ``join_s`` without yoco.join(): not protected."""


class Ended(ControlMessage, tag="ended", frozen=True, kw_only=True):
    exit_code: int | None
    signal: int | None
    detail: str


class Problem(ControlMessage, tag="problem", frozen=True, kw_only=True):
    code: str
    message: str


class Done(ControlMessage, tag="done", frozen=True, kw_only=True):
    pass


Request = StatusRequest | ExecRequest | StopRequest
Reply = Status | Started | NeverJoined | Ended | Problem | Done
Handler = Callable[[Request], AsyncIterator[Reply]]

_requests = msgspec.json.Decoder(Request)
_replies = msgspec.json.Decoder(Reply)


class ControlServer:
    """``handler`` yields the replies to a request. Order of calls: ``start``, ``stop``."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        listener = listen(self._path, socket.SOCK_STREAM)
        self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(
            self._connection, sock=listener, limit=LINE_BYTES_MAX
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async for reply in self._answer(reader):
                writer.write(msgspec.json.encode(reply) + b"\n")
                await writer.drain()
        except OSError:
            pass  # the terminal has gone; what it started goes on
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> AsyncIterator[Reply]:
        try:
            request = _requests.decode(await reader.readline())
        except (ValueError, msgspec.DecodeError) as error:
            yield Problem(code="bad_message", message=str(error))
            return
        try:
            async for reply in self._handler(request):
                yield reply
        except AgentError as error:
            yield Problem(code=error.code, message=error.message)


async def ask(
    state_dir: Path, request: Request, on_reply: Callable[[Reply], Awaitable[None]]
) -> None:
    """Send one request to the daemon and pass on what it answers.

    Raises AgentError with code agent_not_running when nobody listens.
    """
    path = state_dir / CONTROL_SOCKET
    try:
        with short_path(str(path)) as short:
            reader, writer = await asyncio.open_unix_connection(short, limit=LINE_BYTES_MAX)
    except OSError as error:
        raise AgentError(f"no agent runs in {state_dir}: {error}", "agent_not_running") from error
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        await writer.drain()
        while line := await reader.readline():
            await on_reply(_replies.decode(line))
    except (OSError, ValueError) as error:
        raise AgentError(f"the agent broke off: {error}", "agent_not_running") from error
    finally:
        writer.close()
