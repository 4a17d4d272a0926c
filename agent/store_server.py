"""The key-value store that the ranks of a generation meet in, served by the agent's event loop.

Each generation has a prefix and a secret of its own: a connection proves that it knows the secret of one
prefix and then sees the keys of that prefix only. Nothing is kept on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from .store_wire import (
    KEY_BYTES_MAX,
    NONCE_BYTES,
    OPEN_BYTES_MAX,
    FrameError,
    Op,
    Status,
    body_length,
    integer,
    pack,
    proof,
    to_integer,
    unpack,
)

CONNECTIONS_MAX = 8192
KEYS_PER_PREFIX_MAX = 200_000
BYTES_PER_PREFIX_MAX = 1024 * 1024 * 1024
OPEN_TIMEOUT_S = 10.0
PATIENCE_MAX_S = 300.0
WAIT_MAX_S = 24 * 3600.0

Reply = tuple[Status, list[bytes]]


class _Full(Exception):
    """The prefix holds as much as it may."""


class _PrefixClosed(Exception):
    """The prefix was deleted while somebody waited in it."""


@dataclass(eq=False)
class _Space:
    """Keys of one prefix, and whoever waits for one to appear."""

    secret: str
    values: dict[bytes, bytes] = field(default_factory=dict)
    waiters: set[asyncio.Future[None]] = field(default_factory=set)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    size_bytes: int = 0
    closed: bool = False

    def put(self, key: bytes, value: bytes) -> None:
        if not 0 < len(key) <= KEY_BYTES_MAX:
            raise FrameError(f"a key has 1 to {KEY_BYTES_MAX} bytes")
        old = self.values.get(key)
        size = self.size_bytes + len(value) - (len(old) if old is not None else -len(key))
        if size > BYTES_PER_PREFIX_MAX or (old is None and len(self.values) >= KEYS_PER_PREFIX_MAX):
            raise _Full
        self.values[key] = value
        self.size_bytes = size
        if old is None:
            self.wake()

    def drop(self, key: bytes) -> bool:
        old = self.values.pop(key, None)
        if old is not None:
            self.size_bytes -= len(old) + len(key)
        return old is not None

    def wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def missing(self, keys: list[bytes]) -> list[bytes]:
        return [key for key in keys if key not in self.values]

    async def wait_for(self, keys: list[bytes], timeout_s: float) -> None:
        """Return when all ``keys`` are there or the time is over. Raises _PrefixClosed."""
        deadline = asyncio.get_running_loop().time() + min(timeout_s, WAIT_MAX_S)
        while self.missing(keys):
            if self.closed:
                raise _PrefixClosed
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.add(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return
            finally:
                self.waiters.discard(waiter)


def _one(value: int) -> Reply:
    return Status.OK, [integer(value)]


def _set(space: _Space, fields: list[bytes]) -> Reply:
    key, value = fields
    space.put(key, value)
    return Status.OK, []


def _get(space: _Space, fields: list[bytes]) -> Reply:
    _timeout_ms, *keys = fields
    return Status.OK, [space.values[key] for key in keys]


def _add(space: _Space, fields: list[bytes]) -> Reply:
    key, amount = fields
    try:
        value = int(space.values.get(key, b"0")) + to_integer(amount)
    except ValueError as error:
        raise FrameError("the key does not hold a counter") from error
    space.put(key, str(value).encode())
    return _one(value)


def _compare_set(space: _Space, fields: list[bytes]) -> Reply:
    """As torch's own stores: an absent key equals the empty value, and else ``expected`` comes back."""
    key, expected, desired = fields
    current = space.values.get(key)
    if current == expected or (current is None and not expected):
        space.put(key, desired)
        return Status.OK, [desired]
    return Status.OK, [expected if current is None else current]


def _check(space: _Space, fields: list[bytes]) -> Reply:
    return _one(not space.missing(fields))


def _wait(space: _Space, fields: list[bytes]) -> Reply:
    return Status.OK, []


def _delete(space: _Space, fields: list[bytes]) -> Reply:
    (key,) = fields
    return _one(space.drop(key))


def _num_keys(space: _Space, fields: list[bytes]) -> Reply:
    if fields:
        raise FrameError("num_keys takes no fields")
    return _one(len(space.values))


def _append(space: _Space, fields: list[bytes]) -> Reply:
    key, value = fields
    space.put(key, space.values.get(key, b"") + value)
    return Status.OK, []


def _multi_set(space: _Space, fields: list[bytes]) -> Reply:
    for key, value in zip(fields[::2], fields[1::2], strict=True):
        space.put(key, value)
    return Status.OK, []


_HANDLERS: dict[int, Callable[[_Space, list[bytes]], Reply]] = {
    Op.SET: _set, Op.GET: _get, Op.ADD: _add, Op.COMPARE_SET: _compare_set, Op.CHECK: _check,
    Op.WAIT: _wait, Op.DELETE: _delete, Op.NUM_KEYS: _num_keys, Op.APPEND: _append,
    Op.MULTI_SET: _multi_set,
}  # fmt: skip
_WAITING = frozenset({Op.GET, Op.WAIT})


class StoreServer:
    """Order of calls: ``await start()``; ``open_prefix`` / ``close_prefix`` at will; ``await stop()``."""

    def __init__(self, host: str, port: int = 0) -> None:
        self.host = host
        self.port = port
        self._spaces: dict[str, _Space] = {}
        self._opened = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def prefixes(self) -> list[str]:
        return list(self._spaces)

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Listen. ``port`` holds the port taken afterwards. Raises OSError when it is in use."""
        self._server = await asyncio.start_server(self._connection, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        for prefix in list(self._spaces):
            self.close_prefix(prefix)
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def open_prefix(self, prefix: str, secret: str) -> None:
        """Make ``prefix`` known. Repeating it with the same secret keeps its keys.

        Raises ValueError for another secret: two orders would then claim one generation.
        """
        space = self._spaces.get(prefix)
        if space is not None and not hmac.compare_digest(space.secret.encode(), secret.encode()):
            raise ValueError(f"prefix {prefix!r} is open with another secret")
        if space is None:
            self._spaces[prefix] = _Space(secret)
            self._opened.set()
            self._opened = asyncio.Event()

    def values_of(self, prefix: str, begins: bytes) -> list[tuple[bytes, bytes]]:
        """Keys that begin so, with their values; none of a prefix that is not known."""
        space = self._spaces.get(prefix)
        values = {} if space is None else space.values
        return [(key, value) for key, value in values.items() if key.startswith(begins)]

    def put(self, prefix: str, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Set keys of a prefix that is open."""
        for key, value in values:
            self._spaces[prefix].put(key, value)

    def close_prefix(self, prefix: str) -> None:
        """Delete ``prefix`` with all its keys; whoever waits in it is told that it is closed."""
        space = self._spaces.pop(prefix, None)
        if space is None:
            return
        space.closed = True
        space.wake()
        for writer in space.writers:
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        _keep_alive(writer)
        try:
            if len(self._connections) <= CONNECTIONS_MAX:
                async with self._space_of(reader, writer) as space:
                    if space is not None:
                        await _serve(space, reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the peer went away or the daemon stops: nothing to tell anybody
        finally:
            self._connections.discard(task)
            writer.close()

    @contextlib.asynccontextmanager
    async def _space_of(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> AsyncIterator[_Space | None]:
        """The space a new connection may use, None when it was refused."""
        space = await self._authenticate(reader, writer)
        if space is None:
            writer.write(pack(Status.REFUSED, []))
            with contextlib.suppress(OSError):
                await writer.drain()
            yield None
            return
        space.writers.add(writer)
        try:
            yield space
        finally:
            space.writers.discard(writer)

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Space | None:
        server_nonce = os.urandom(NONCE_BYTES)
        writer.write(pack(Status.CHALLENGE, [server_nonce]))
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                head = await reader.readexactly(4)
                code, fields = unpack(await reader.readexactly(body_length(head, OPEN_BYTES_MAX)))
            prefix, client_nonce, shown, patience_ms = fields
            patience_s = min(to_integer(patience_ms) / 1000, PATIENCE_MAX_S)
            name = prefix.decode()
        except (ValueError, TimeoutError):
            return None
        if code != Op.OPEN or len(client_nonce) != NONCE_BYTES:
            return None
        space = await self._wait_for_prefix(name, patience_s)
        if space is None:
            return None
        nonces = (server_nonce, client_nonce, prefix)
        if not hmac.compare_digest(shown, proof(space.secret, b"client", *nonces)):
            return None
        writer.write(pack(Status.OK, [proof(space.secret, b"server", *nonces)]))
        return space

    async def _wait_for_prefix(self, prefix: str, patience_s: float) -> _Space | None:
        """A rank may come before the order that opens its prefix: the wait is an event, not a retry."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while prefix not in self._spaces:
                    await self._opened.wait()
        return self._spaces.get(prefix)


async def _serve(space: _Space, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readexactly(4)
    while True:
        next_head: bytes | None = None
        try:
            code, fields = unpack(await reader.readexactly(body_length(head)))
            if code not in _HANDLERS:
                raise FrameError(f"no operation {code}")
            if code in _WAITING and fields and space.missing(fields[1:]):
                next_head = await _wait_or_gone(space, reader, fields)
            if space.closed:
                raise _PrefixClosed
            missing = space.missing(fields[1:]) if code in _WAITING else []
            if missing:
                writer.write(pack(Status.TIMEOUT, missing[:1]))
            else:
                writer.write(pack(*_HANDLERS[code](space, fields)))
        except _Full:
            writer.write(pack(Status.FULL, []))
        except _PrefixClosed:
            writer.write(pack(Status.CLOSED, []))
        except ValueError as error:  # FrameError, or a wrong number of fields
            writer.write(pack(Status.BAD_FRAME, [str(error).encode()]))
            await writer.drain()
            return
        await writer.drain()
        head = next_head or await reader.readexactly(4)


async def _wait_or_gone(
    space: _Space, reader: asyncio.StreamReader, fields: list[bytes]
) -> bytes | None:
    """Wait for keys, but not for a client that has gone meanwhile (EOFError, OSError).

    The read that would notice its going may also get the head of its next frame: that is returned.
    """
    reading = asyncio.ensure_future(reader.readexactly(4))
    waiting = asyncio.ensure_future(space.wait_for(fields[1:], to_integer(fields[0]) / 1000))
    try:
        await asyncio.wait((reading, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (reading, waiting):
            task.cancel()
        results = await asyncio.gather(reading, waiting, return_exceptions=True)
    head, failure = results
    if isinstance(head, (EOFError, OSError)):
        raise head
    if isinstance(failure, _PrefixClosed):
        raise failure
    return head if isinstance(head, bytes) else None


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Find out within seconds that a peer's machine has gone silent."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3),
    ):  # fmt: skip
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
