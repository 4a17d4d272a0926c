"""Blocking client of the agents' key-value store, without torch (training/store.py wraps it for torch).

Each call takes a connection of its own from a small pool, so that one thread may wait for a key while
another sets it. ``close`` ends calls in progress from any thread: an aborted generation never hangs here.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
import time

from .store_wire import (
    FRAME_BYTES_MAX,
    NONCE_BYTES,
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

_GRACE_S = 5.0
_RETRY_S = 0.02
_TRY_S = 2.0
_IDLE_MAX = 4


class StoreError(Exception):
    """Base of what a store call raises. ``code`` is stable."""

    code = "store_failed"


class StoreTimeout(StoreError, TimeoutError):
    """A key did not appear in time."""

    code = "store_timeout"


class StoreRefused(StoreError):
    """The prefix is not open there, or this secret does not open it."""

    code = "store_refused"


class StoreGone(StoreError, ConnectionError):
    """The server went away, the prefix was deleted, or this client was closed."""

    code = "store_gone"


class StoreClient:
    """One prefix of one store. Safe to use from several threads.

    ``timeout_s`` is the default of ``get`` and ``wait``; ``connect_timeout_s`` also covers the wait for a
    prefix whose order has not reached the store's agent yet. Raises StoreRefused, StoreGone at once when
    the first connection cannot be made. ``connect`` False leaves that to ``connect()``, so that ``close``
    can end the wait for it.
    """

    def __init__(
        self,
        host: str,
        port: int,
        prefix: str,
        secret: str,
        *,
        timeout_s: float = 300.0,
        connect_timeout_s: float = 30.0,
        bind_host: str = "",
        connect: bool = True,
    ) -> None:
        self.host, self.port, self.prefix = host, port, prefix
        self.timeout_s = timeout_s
        self._secret = secret
        self._connect_timeout_s = connect_timeout_s
        self._bind_host = bind_host
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._closed = False
        if connect:
            self.connect()

    def connect(self) -> None:
        """Make the first connection. Raises StoreRefused, StoreGone."""
        self._give_back(self._connect())

    def clone(self) -> StoreClient:
        """Another client of the same prefix, with connections of its own."""
        return StoreClient(
            self.host, self.port, self.prefix, self._secret, timeout_s=self.timeout_s,
            connect_timeout_s=self._connect_timeout_s, bind_host=self._bind_host,
        )  # fmt: skip

    def set(self, key: str, value: bytes) -> None:
        self._call(Op.SET, [key.encode(), value])

    def get(self, key: str, timeout_s: float | None = None) -> bytes:
        """The value of ``key``, waited for. Raises StoreTimeout."""
        return self.multi_get([key], timeout_s)[0]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter (absent is 0) and return what it holds then."""
        return to_integer(self._call(Op.ADD, [key.encode(), integer(amount)])[0])

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set when the value is ``expected``, or absent and ``expected`` empty. The value it has then;
        ``expected`` when the key is absent and nothing was set."""
        return self._call(Op.COMPARE_SET, [key.encode(), expected, desired])[0]

    def check(self, keys: list[str]) -> bool:
        """Whether all ``keys`` are there now."""
        return bool(to_integer(self._call(Op.CHECK, [key.encode() for key in keys])[0]))

    def wait(self, keys: list[str], timeout_s: float | None = None) -> None:
        """Return when all ``keys`` are there. Raises StoreTimeout."""
        self._waiting(Op.WAIT, keys, timeout_s)

    def delete_key(self, key: str) -> bool:
        """Whether the key was there."""
        return bool(to_integer(self._call(Op.DELETE, [key.encode()])[0]))

    def num_keys(self) -> int:
        return to_integer(self._call(Op.NUM_KEYS, [])[0])

    def append(self, key: str, value: bytes) -> None:
        self._call(Op.APPEND, [key.encode(), value])

    def multi_get(self, keys: list[str], timeout_s: float | None = None) -> list[bytes]:
        """The values of ``keys``, waited for. Raises StoreTimeout."""
        return self._waiting(Op.GET, keys, timeout_s)

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        """Raises ValueError when the lists differ in length."""
        pairs = zip(keys, values, strict=True)
        self._call(Op.MULTI_SET, [part for key, value in pairs for part in (key.encode(), value)])

    def close(self) -> None:
        """End every call in progress with StoreGone and refuse new ones."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                _shut(connection)
        for connection in idle:
            connection.close()

    def _waiting(self, op: Op, keys: list[str], timeout_s: float | None) -> list[bytes]:
        seconds = self.timeout_s if timeout_s is None else timeout_s
        fields = [integer(int(seconds * 1000)), *(key.encode() for key in keys)]
        return self._call(op, fields, waits_s=seconds)

    def _call(self, op: Op, fields: list[bytes], waits_s: float = 0.0) -> list[bytes]:
        request = pack(op, fields)
        connection = self._take() or self._connect()
        try:
            connection.settimeout(waits_s + _GRACE_S)
            connection.sendall(request)
            status, reply = unpack(_receive_body(connection))
        except (OSError, FrameError) as error:
            self._drop(connection)
            raise StoreGone(f"store {self.host}:{self.port}: {error}") from error
        except BaseException:
            self._drop(connection)
            raise
        if status in (Status.OK, Status.TIMEOUT, Status.FULL):
            self._give_back(connection)
        else:
            self._drop(connection)
        return _judge(status, reply, waits_s)

    def _take(self) -> socket.socket | None:
        with self._lock:
            if self._closed:
                raise StoreGone("this store client is closed")
            if not self._idle:
                return None
            connection = self._idle.pop()
            self._busy.add(connection)
            return connection

    def _give_back(self, connection: socket.socket) -> None:
        with self._lock:
            self._busy.discard(connection)
            if not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + self._connect_timeout_s
        while True:
            try:
                return self._open(deadline)
            except (ConnectionRefusedError, ConnectionResetError, TimeoutError) as error:
                # Nothing to wait on: the agent that serves the store may be on its way up again.
                if self._closed or time.monotonic() + _RETRY_S > deadline:
                    raise StoreGone(f"store {self.host}:{self.port}: {error}") from error
                threading.Event().wait(_RETRY_S)
            except OSError as error:
                raise StoreGone(f"store {self.host}:{self.port}: {error}") from error

    def _open(self, deadline: float) -> socket.socket:
        left_s = max(deadline - time.monotonic(), 0.05)
        source = (self._bind_host, 0) if self._bind_host else None
        # In short tries: nothing ends one from another thread, and a host that lost power says nothing.
        first_s = min(left_s, _TRY_S)
        connection = socket.create_connection((self.host, self.port), first_s, source)
        with self._lock:
            if self._closed:
                connection.close()
                raise StoreGone("this store client is closed")
            self._busy.add(connection)
        try:
            self._authenticate(connection, left_s)
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _authenticate(self, connection: socket.socket, left_s: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3),
        ):  # fmt: skip
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.settimeout(left_s + _GRACE_S)
        prefix, client_nonce = self.prefix.encode(), os.urandom(NONCE_BYTES)
        try:
            code, fields = unpack(_receive_body(connection))
            if code != Status.CHALLENGE or len(fields) != 1 or len(fields[0]) != NONCE_BYTES:
                raise FrameError("the server sent no challenge")
            nonces = (fields[0], client_nonce, prefix)
            shown = proof(self._secret, b"client", *nonces)
            patience = integer(int(left_s * 1000))
            connection.sendall(pack(Op.OPEN, [prefix, client_nonce, shown, patience]))
            code, fields = unpack(_receive_body(connection))
        except FrameError as error:
            raise StoreGone(f"store {self.host}:{self.port}: {error}") from error
        expected = proof(self._secret, b"server", *nonces)
        if code != Status.OK or not fields or not hmac.compare_digest(fields[0], expected):
            raise StoreRefused(f"store {self.host}:{self.port} refused prefix {self.prefix!r}")


def _judge(status: int, reply: list[bytes], waits_s: float) -> list[bytes]:
    if status == Status.OK:
        return reply
    if status == Status.TIMEOUT:
        names = ", ".join(key.decode(errors="replace") for key in reply)
        raise StoreTimeout(f"no key {names!r} within {waits_s:g} s")
    if status == Status.CLOSED:
        raise StoreGone("the store deleted this prefix")
    if status == Status.FULL:
        raise StoreError("the store holds as much as a prefix may")
    raise StoreError(b" ".join(reply).decode(errors="replace") or "the store refused the request")


def _receive_body(connection: socket.socket) -> bytes:
    return bytes(_receive(connection, body_length(_receive(connection, 4), FRAME_BYTES_MAX)))


def _receive(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError("the store closed the connection")
        view = view[count:]
    return data


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # already gone
