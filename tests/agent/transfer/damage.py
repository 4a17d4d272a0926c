"""A wire that misbehaves: sits between target and source and does one thing wrong, once.

Forwards descriptors too, so that it can stand before the unix socket.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Damage:
    """What happens to the bytes from source to target on each connection. Positions count from its start.

    ``piece``: forwarded in runs of so many bytes; ``flip_at``: this byte has one bit turned;
    ``cut_at``: the connection is closed there; ``stall_at``: nothing passes from there on.
    """

    piece: int = 65536
    flip_at: int | None = None
    cut_at: int | None = None
    stall_at: int | None = None


class Wire:
    """Carries connections between whoever asks and ``connect_source``, with one kind of damage."""

    def __init__(self, connect_source: Callable[[], socket.socket], damage: Damage) -> None:
        self._connect_source = connect_source
        self._damage = damage
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._closed = threading.Event()

    def listen(self, listener: socket.socket) -> None:
        self._listener = listener
        self._start(self._accept, listener)

    def join_to(self, target_end: socket.socket) -> None:
        """One more connection: ``target_end`` is the far side of what the target holds."""
        try:
            source_end = self._connect_source()
        except OSError:
            target_end.close()
            return
        self._ends += [target_end, source_end]
        self._start(self._forward, source_end, target_end, self._damage)
        self._start(self._forward, target_end, source_end, Damage())

    def close(self) -> None:
        self._closed.set()
        for end in [*self._ends, *([self._listener] if self._listener else [])]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=5)
        for end in [*self._ends, *([self._listener] if self._listener else [])]:
            end.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                self.join_to(listener.accept()[0])

    def _forward(self, reader: socket.socket, writer: socket.socket, damage: Damage) -> None:
        position = 0
        with suppress(OSError):
            while True:
                data, fds = _receive(reader, damage.piece)
                if not data:
                    break
                end = position + len(data)
                if damage.cut_at is not None and end > damage.cut_at:
                    break
                if damage.stall_at is not None and end > damage.stall_at:
                    self._closed.wait()
                    break
                if damage.flip_at is not None and position <= damage.flip_at < end:
                    data[damage.flip_at - position] ^= 0x10
                _send(writer, data, fds)
                position = end
        for end_of in (reader, writer):
            with suppress(OSError):
                end_of.shutdown(socket.SHUT_RDWR)


def _receive(reader: socket.socket, size: int) -> tuple[bytearray, list[int]]:
    if reader.family != socket.AF_UNIX:
        return bytearray(reader.recv(size)), []
    data, fds, _, _ = socket.recv_fds(reader, size, 253)
    return bytearray(data), fds


def _send(writer: socket.socket, data: bytearray, fds: list[int]) -> None:
    if fds:
        # One read may join earlier bytes to the byte that the descriptors came with: the last one.
        writer.sendall(data[:-1])
        socket.send_fds(writer, [data[-1:]], fds)
        for fd in fds:
            os.close(fd)
    else:
        writer.sendall(data)
