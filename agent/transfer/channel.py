"""One connection of a stream. Plain (TCP, unix, socket pair) or TLS; every wait has a limit."""

from __future__ import annotations

import array
import os
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from . import wire
from .errors import (
    PeerLost,
    ProtocolViolation,
    TlsFailed,
    TransferError,
    TransferTimeout,
    from_code,
)
from .plan import Chunk

_GROW_BYTES = 16 * 1024 * 1024
_LAST_WORD_S = 0.5


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise PeerLost("the encrypted stream ended") from error
    except ssl.SSLError as error:
        raise TlsFailed(f"the encrypted stream broke: {error}") from error
    except (BlockingIOError, TimeoutError) as error:
        raise TransferTimeout("the peer is connected and says nothing") from error
    except OSError as error:
        raise PeerLost(f"the connection ended: {error.strerror or error}") from error


class Channel:
    """A connection of our own framing. ``stall_s``: longest wait for a single byte to move."""

    def __init__(self, connection: socket.socket, stall_s: float) -> None:
        self._socket = connection
        self._secure = isinstance(connection, ssl.SSLSocket)
        self._stall_s = stall_s
        self.limit_waits(stall_s)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def interface(self) -> str:
        """The local address this connection uses; empty where there is no network in between."""
        if self._socket.family not in (socket.AF_INET, socket.AF_INET6):
            return ""
        return str(self._socket.getsockname()[0])

    def limit_waits(self, seconds: float) -> None:
        """From now on no wait for a byte is longer than this."""
        self._stall_s = seconds
        if self._secure:
            self._socket.settimeout(seconds)
            return
        # A kernel time-out keeps the descriptor blocking: sendfile and MSG_WAITALL need that.
        self._socket.settimeout(None)
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def secure_as_server(self, context: ssl.SSLContext) -> None:
        """Speak TLS from here on. Raises TlsFailed when the peer does not."""
        self._socket.settimeout(self._stall_s)
        try:
            self._socket = context.wrap_socket(self._socket, server_side=True)
        except (OSError, ValueError) as error:
            raise TlsFailed(f"the peer does not speak TLS: {error}") from error
        self._secure = True
        self.limit_waits(self._stall_s)

    def send(self, frame: wire.Frame) -> None:
        self.send_bytes(wire.encode(frame))

    def receive(self, kind: type[wire.AnyFrameType]) -> wire.AnyFrameType:
        """The next message, which must be of ``kind``. Raises what the peer named if it refused."""
        return wire.expect(self.receive_any(), kind)

    def receive_any(self) -> wire.AnyFrame:
        size = wire.message_bytes(self.receive_bytes(wire.HEAD.size))
        return wire.decode(self.receive_bytes(size))

    def send_bytes(self, data: bytes | bytearray | memoryview) -> None:
        with _named_errors():
            self._socket.sendall(data)

    def receive_bytes(self, size: int) -> bytearray:
        """Exactly ``size`` bytes; memory grows with what arrives, never with what was announced."""
        data = bytearray()
        while len(data) < size:
            start = len(data)
            data.extend(bytes(min(_GROW_BYTES, size - start)))
            with memoryview(data) as view:
                self.receive_into(view[start:])
        return data

    def receive_into(self, view: memoryview) -> None:
        """Fill ``view``. Raises PeerLost when the stream ends before."""
        position, flags = 0, 0 if self._secure else socket.MSG_WAITALL
        with _named_errors():
            while position < len(view):
                with view[position:] as rest:
                    count = self._socket.recv_into(rest, 0, flags)
                if count == 0:
                    raise PeerLost(f"the stream ended {len(view) - position} bytes short")
                position += count

    def send_chunk(self, chunk: Chunk, fds: Mapping[int, int], read: Sequence[memoryview]) -> None:
        """Send a chunk that was just read into ``read``: from its storages where the kernel can."""
        if self._secure:
            for view in read:
                self.send_bytes(view)
            return
        with _named_errors():
            for piece in chunk.pieces:
                self._send_file(fds[piece.source_id], piece.offset, piece.bytes)

    def _send_file(self, fd: int, offset: int, size: int) -> None:
        end = offset + size
        while offset < end:
            count = os.sendfile(self._socket.fileno(), fd, offset, end - offset)
            if count == 0:
                raise PeerLost(f"a storage ended {end - offset} bytes short")
            offset += count

    def send_descriptors(self, fds: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        with _named_errors():
            self._socket.sendmsg([b"F"], rights)

    def receive_descriptors(self, count: int) -> list[int]:
        """``count`` descriptors, not inheritable, now the caller's."""
        found = array.array("i")
        with _named_errors():
            data, ancillary, flags, _ = self._socket.recvmsg(
                1, socket.CMSG_SPACE(found.itemsize * wire.FDS_PER_BATCH), socket.MSG_CMSG_CLOEXEC
            )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
        if data != b"F" or len(found) != count or flags & socket.MSG_CTRUNC:
            for fd in found:
                os.close(fd)
            raise ProtocolViolation(f"{len(found)} descriptors came where {count} were announced")
        return list(found)

    def interrupt(self) -> None:
        """End every wait on this connection, from another thread."""
        # Not SSLSocket.shutdown: it drops the encryption under a thread that is still reading.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def refuse(self, error: TransferError) -> None:
        """Tell the peer why, if it still listens."""
        with suppress(TransferError):
            self.send(wire.Refused(code=error.code, message=error.message[:2000]))

    def last_word(self, error: TransferError) -> TransferError:
        """The reason the peer gave for ending the stream, or ``error`` if it gave none."""
        try:
            self.limit_waits(_LAST_WORD_S)
            frame = self.receive_any()
        except (TransferError, OSError):
            return error
        return from_code(frame.code, frame.message) if isinstance(frame, wire.Refused) else error

    def close(self) -> None:
        self._socket.close()
