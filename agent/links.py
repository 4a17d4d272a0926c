"""The agent's ends of the links to its workers, in the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from . import link
from .link import FromAgent, FromWorker

_log = structlog.get_logger("yoco.links")
_CREDENTIALS = struct.Struct("3i")
QUEUE_MAX = 256

OnMessage = Callable[[FromWorker, list[int]], None]


class WorkerLink:
    """One end of a link. ``on_message`` gets each packet with its descriptors, which it then owns.

    A packet that is not our protocol ends the link, never the worker: it trains on.
    """

    def __init__(self, end: socket.socket, on_message: OnMessage) -> None:
        end.setblocking(False)
        self._end = end
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[FromAgent, list[int]]] = deque()
        self.open = True
        self._loop.add_reader(end.fileno(), self._readable)

    def send(self, message: FromAgent, fds: list[int] | None = None) -> None:
        """Send now, or when the worker reads again. ``fds`` become this object's to close."""
        if not self.open or len(self._queue) >= QUEUE_MAX:
            _close(fds or [])
            return
        self._queue.append((message, fds or []))
        self._flush()

    def drain(self) -> None:
        """Take in what has arrived, without waiting: the last words of a worker that has ended."""
        while self.open and self._receive():
            pass

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._end.fileno())
        self._drop_queue()
        self._end.close()

    def _readable(self) -> None:
        self._receive()

    def _drop_queue(self) -> None:
        self._loop.remove_writer(self._end.fileno())
        while self._queue:
            _close(self._queue.popleft()[1])

    def _receive(self) -> bool:
        """Handle one packet. False when there was none."""
        try:
            packet = link.receive_from_worker(self._end)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # It ended before it read all of ours. The kernel says so once; what it sent comes after.
            return True
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("link_ended", reason=str(error))
            packet = None
        if packet is None:
            self.close()
            return False
        self._on_message(*packet)
        return True

    def _flush(self) -> None:
        while self._queue:
            message, fds = self._queue[0]
            try:
                link.send(self._end, message, fds)
            except BlockingIOError:
                self._loop.add_writer(self._end.fileno(), self._flush)
                return
            except (OSError, ValueError) as error:
                # What it said before it went may still be unread, so only this direction ends.
                _log.warning("link_unheard", reason=str(error))
                self._drop_queue()
                return
            self._queue.popleft()
            _close(fds)
        self._loop.remove_writer(self._end.fileno())


class ReconnectListener:
    """Where workers find an agent that was restarted. ``on_connect`` gets the peer's pid from the
    kernel, so that nobody can claim to be another process."""

    def __init__(self, path: Path, on_connect: Callable[[socket.socket, int], None]) -> None:
        self._on_connect = on_connect
        self._listener = listen(path, socket.SOCK_SEQPACKET)
        # The workers' user need not be the agent's.
        path.chmod(0o666)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            end, _ = self._listener.accept()
        except OSError:
            return
        end.set_inheritable(False)
        credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _uid, _gid = _CREDENTIALS.unpack(credentials)
        self._on_connect(end, pid)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()


def listen(path: Path, kind: socket.SocketKind) -> socket.socket:
    """A non-blocking unix listener at ``path``, in place of what an earlier run left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        with link.short_path(str(path)) as short:
            listener.bind(short)
        listener.listen(64)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
