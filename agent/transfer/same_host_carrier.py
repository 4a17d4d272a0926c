"""State between two agents of one machine: the source's descriptors over its unix socket.

Copied: each side reads and digests its own memory, so that equal digests mean what they mean over
TCP. Taken: the memory itself changes hands (its owner is dead); device and inode prove that it is
the same memory, nothing is read, and so the time does not depend on the size. The engine maps taken
memory in place.
"""

from __future__ import annotations

import os
import socket

from ..protocol import Endpoint
from . import wire
from .carrier import Crew, Landed, Mode, Move, check_digest
from .channel import Channel
from .digest import read_exactly, views_digest
from .errors import PeerUnreachable, ProtocolViolation
from .plan import Chunk
from .state import TargetState

COPY_THREADS = 2


class SameHostCarrier:
    name = "same_host"
    tls_fingerprint = ""

    def __init__(self, endpoint: Endpoint) -> None:
        self._path = endpoint.unix_path

    def connect(self, stall_s: float) -> Channel:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(stall_s)
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            raise PeerUnreachable(f"{self._path}: {error}") from error
        return Channel(connection, stall_s)

    def mode(self, move: Move) -> Mode:
        return "take" if move.take else "fds"

    def move(self, move: Move) -> Landed:
        sources = self._receive_descriptors(move)
        if move.take:
            pairs = {
                piece.source_id: piece.target_id
                for chunk in move.plan.chunks
                for piece in chunk.pieces
            }
            return Landed((), {pairs[each]: fd for each, fd in sources.items()})
        try:
            return Landed(self._copy(move, sources))
        finally:
            for fd in sources.values():
                os.close(fd)

    def _receive_descriptors(self, move: Move) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for chunk in move.plan.chunks:
            for piece in chunk.pieces:
                sizes[piece.source_id] = piece.offset + piece.bytes
        found: dict[int, int] = {}
        try:
            while len(found) < len(sizes):
                batch = move.control.receive(wire.Descriptors).storages
                if not 0 < len(batch) <= wire.FDS_PER_BATCH:
                    raise ProtocolViolation(f"{len(batch)} descriptors in one batch")
                fds = move.control.receive_descriptors(len(batch))
                accepted = self._accept(batch, fds, sizes.keys() - found.keys())
                found.update(accepted)
                self._check_sizes(accepted, sizes)
        except BaseException:
            for fd in found.values():
                os.close(fd)
            raise
        return found

    def _accept(
        self, batch: list[tuple[int, int, int]], fds: list[int], wanted: set[int]
    ) -> dict[int, int]:
        """The batch by storage id. Raises, everything closed, unless each is the memory it says."""
        accepted: dict[int, int] = {}
        for (storage_id, device, inode), fd in zip(batch, fds, strict=True):
            stat = os.fstat(fd)
            if storage_id in wanted and (stat.st_dev, stat.st_ino) == (device, inode):
                accepted.setdefault(storage_id, fd)
        if len(accepted) != len(fds):
            for fd in fds:
                os.close(fd)
            raise ProtocolViolation("a descriptor is not the memory that the source named")
        return accepted

    def _check_sizes(self, accepted: dict[int, int], sizes: dict[int, int]) -> None:
        for storage_id, fd in accepted.items():
            if os.fstat(fd).st_size < sizes[storage_id]:
                raise ProtocolViolation(f"the memory of storage {storage_id} is too short")

    def _copy(self, move: Move, sources: dict[int, int]) -> list[bytes]:
        chunks = move.plan.chunks
        landed = [b""] * len(chunks)
        crew = Crew()
        for index in range(COPY_THREADS):

            def copy(index: int = index) -> None:
                for chunk in move.plan.of_stream(index, COPY_THREADS):
                    if crew.stopped:
                        return
                    landed[chunk.index] = self.copy_chunk(chunk, sources, move.target)

            crew.start(copy)
        try:
            expected = _receive_digests(move.control, len(chunks))
        except BaseException as error:
            crew.stop(error)
            raise
        finally:
            crew.join()
        for chunk in chunks:
            check_digest(landed[chunk.index], expected[chunk.index], chunk)
        return landed

    def copy_chunk(self, chunk: Chunk, sources: dict[int, int], target: TargetState) -> bytes:
        """Copy one chunk; the digest of the target's memory afterwards."""
        with target.views(chunk) as views:
            for piece, view in zip(chunk.pieces, views, strict=True):
                read_exactly(sources[piece.source_id], view, piece.offset)
        return self.digest_chunk(chunk, target)

    def digest_chunk(self, chunk: Chunk, target: TargetState) -> bytes:
        with target.views(chunk) as views:
            return views_digest(views)


def _receive_digests(control: Channel, count: int) -> list[bytes]:
    """The source's digest of every chunk."""
    digests: list[bytes] = []
    while len(digests) < count:
        batch = control.receive(wire.Digests)
        if batch.first != len(digests) or not 0 < len(batch.digests) <= count - len(digests):
            raise ProtocolViolation("digests out of order")
        digests.extend(batch.digests)
    return digests
