"""The data plane's server: one per agent, in threads of its own, never in the event loop.

Order of calls: start -> (offer -> [a target opens it, once] -> withdraw)* -> stop.
Listens on TCP, with TLS off loopback, and on a unix socket for agents on the same machine. A
stranger on the port costs one thread for at most HANDSHAKE_S and is told nothing.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from . import handshake, wire
from .channel import Channel
from .errors import PeerLost, ServerBusy, TlsFailed, TransferError
from .offers import OfferBook
from .secrets import StreamIdentity
from .serving import Sessions, serve_control, serve_data
from .state import ServeReport, SourceFactory, SourceState
from .tls import TlsIdentity, is_loopback, passing_context

__all__ = ["DataServer", "ServeReport", "SourceFactory", "SourceState", "StreamIdentity"]

CONNECTIONS_MAX = 128
HANDSHAKE_S = 5.0


class DataServer:
    """``tls`` None: a certificate for this process's life off loopback, none on it; ``off``: never.

    ``port`` 0 takes a free one; read ``port``, ``unix_path`` and ``tls_fingerprint`` after
    ``start`` and put them into the agent's Endpoint. ``stall_s``: a peer that lets no byte pass for
    so long is given up; ``handshake_s``: a stranger.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        unix_path: str | Path | None = None,
        tls: TlsIdentity | Literal["off"] | None = None,
        *,
        stall_s: float = 10.0,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self.host = host
        self.port = port
        self.unix_path = str(unix_path or "")
        self.tls_fingerprint = ""
        self._tls = tls
        self._stall_s = stall_s
        self._handshake_s = handshake_s
        self._context: ssl.SSLContext | None = None
        self._book = OfferBook()
        self._sessions = Sessions()
        self._listeners: list[socket.socket] = []
        self._connections: dict[Channel, threading.Thread] = {}
        self._lock = threading.Lock()
        self._stopped = False

    @property
    def tls(self) -> Literal["off", "pinned"]:
        """What TCP streams are protected by; shown with the node."""
        return "pinned" if self.tls_fingerprint else "off"

    @property
    def connections(self) -> int:
        """Open connections at this moment."""
        with self._lock:
            return len(self._connections)

    def start(self) -> None:
        """Bind and listen. Raises OSError for a taken address, TlsFailed for a bad certificate."""
        if isinstance(self._tls, TlsIdentity):
            self._context, self.tls_fingerprint = self._tls.server_context(), self._tls.fingerprint
        elif self._tls is None and not is_loopback(self.host):
            self._context, self.tls_fingerprint = passing_context()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.create_server((self.host, self.port), family=family, backlog=128)
        self.port = listener.getsockname()[1]
        self._listen(listener, secure=self._context is not None)
        if self.unix_path:
            self._listen(_unix_listener(self.unix_path), secure=False)

    def stop(self) -> None:
        """Refuse everybody, end every stream and wait for its thread."""
        with self._lock:
            self._stopped = True
            open_now = dict(self._connections)
        self._book.close()
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for channel in open_now:
            channel.interrupt()
        for thread in open_now.values():
            thread.join(timeout=self._stall_s)
        if self.unix_path:
            Path(self.unix_path).unlink(missing_ok=True)

    def offer(
        self,
        stream_id: str,
        secret: str,
        identity: StreamIdentity,
        source: SourceFactory,
        lifetime_s: float,
        on_end: Callable[[ServeReport], None] | None = None,
    ) -> None:
        """Open a stream once, for ``lifetime_s``, to who holds ``secret`` and means ``identity``.

        A repeat changes nothing. ``on_end`` is called in the stream's thread. Raises OldGeneration.
        """
        self._book.offer(stream_id, secret, identity, source, lifetime_s, on_end)

    def withdraw(self, stream_id: str) -> None:
        """No longer offered; a transfer that already runs goes on."""
        self._book.withdraw(stream_id)

    def end_generations(self, job_id: str, attempt: int, generation: int) -> None:
        """(attempt, generation) of this job began: earlier ones are refused from now on."""
        self._book.end_generations(job_id, attempt, generation)

    def connect_here(self) -> socket.socket:
        """A connection inside this process, as if it had been accepted (memory_carrier)."""
        ours, theirs = socket.socketpair()
        self._take(ours, secure=False)
        return theirs

    def _listen(self, listener: socket.socket, *, secure: bool) -> None:
        self._listeners.append(listener)
        threading.Thread(
            target=self._accept, args=(listener, secure), name="yoco-data-accept", daemon=True
        ).start()

    def _accept(self, listener: socket.socket, secure: bool) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._stopped or listener.fileno() < 0:
                    return
                continue
            self._take(connection, secure=secure)

    def _take(self, connection: socket.socket, *, secure: bool) -> None:
        channel = Channel(connection, self._handshake_s)
        thread = threading.Thread(
            target=self._handle, args=(channel, secure), name="yoco-data-stream", daemon=True
        )
        with self._lock:
            full = self._stopped or len(self._connections) >= CONNECTIONS_MAX
            if not full:
                self._connections[channel] = thread
        if full:
            channel.refuse(ServerBusy("too many connections"))
            channel.close()
            return
        thread.start()

    def _handle(self, channel: Channel, secure: bool) -> None:
        try:
            if secure and self._context is not None:
                channel.secure_as_server(self._context)
            self._dispatch(channel, self.tls_fingerprint if secure else "")
        except TlsFailed:
            pass
        except TransferError as error:
            channel.refuse(error)
        finally:
            channel.close()
            with self._lock:
                self._connections.pop(channel, None)

    def _dispatch(self, channel: Channel, tls_fingerprint: str) -> None:
        hello = channel.receive_any()
        if isinstance(hello, wire.DataHello):
            channel.limit_waits(self._stall_s)
            serve_data(channel, hello, self._sessions, tls_fingerprint)
            return
        hello = wire.expect(hello, wire.Hello)
        offer, held = handshake.admit_control(channel, hello, self._book, tls_fingerprint)
        channel.limit_waits(self._stall_s)
        try:
            serve_control(channel, offer, held, self._sessions, self._stall_s)
        except PeerLost as error:
            raise channel.last_word(error) from error


def _unix_listener(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    # Nobody can connect before listen(), so the mode is set in time.
    Path(path).chmod(0o600)
    listener.listen(128)
    return listener
