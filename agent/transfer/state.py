"""The two ends of a transfer: what a source gives, where a target takes it, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .errors import SourceUnavailable
from .manifest import Manifest
from .memory import Memory, Views, check_storage
from .plan import Chunk

BlobName = Literal["small", "fence", "prepared", "micro"]
BLOBS_OF: dict[str, tuple[BlobName, ...]] = {
    "shared": ("small",),
    "private": ("fence", "prepared", "micro"),
    "all": ("small", "fence", "prepared", "micro"),
}
"""Which blobs may travel in a stream of each kind."""


def _nothing() -> None: ...


@dataclass(frozen=True)
class SourceState:
    """A rank's state at rest, as its agent holds it. Nothing may write to it until ``release``.

    ``storages``: manifest storage id -> descriptor of the memory (a memfd or a shared-memory file),
    which stays the owner's. ``blobs``: name -> (step, bytes). ``takeable``: the owner is dead, so a
    target on this machine may take the memory itself instead of a copy. ``memory``: the storages as
    mapped ahead by the holder, a third cheaper to send from. ``release`` is called once, when the
    stream is over, however it ended.
    """

    manifest: Manifest = field(default_factory=Manifest)
    storages: Mapping[int, int] = field(default_factory=dict)
    blobs: Mapping[BlobName, tuple[int, bytes]] = field(default_factory=dict)
    takeable: bool = False
    memory: Memory | None = None
    release: Callable[[], None] = _nothing

    def check(self, what: str) -> None:
        """Raise SourceUnavailable unless all is there, and as large as the manifest says."""
        allowed = BLOBS_OF[what]
        if extra := self.blobs.keys() - set(allowed):
            raise SourceUnavailable(f"{sorted(extra)} do not belong in a stream of {what} state")
        if what == "private":
            if self.storages or self.manifest.storages:
                raise SourceUnavailable("storages do not belong in a stream of private state")
            return
        for storage in self.manifest.storages:
            check_storage(self.storages, storage.id, storage.bytes)


SourceFactory = Callable[[], SourceState]
"""Called when the stream's secret was spent; may wait for the state to be at rest, may raise
SourceUnavailable. Runs in the stream's own thread."""


class TargetState:
    """The standby's own arena: its manifest and descriptors, which stay the caller's.

    ``prepare`` maps the memory ahead of time, so that a transfer need not; otherwise the transfer
    maps it. ``close`` when the standby is gone. Without storages (a stream of private state) both
    are free.
    """

    def __init__(
        self, manifest: Manifest | None = None, storages: Mapping[int, int] | None = None
    ) -> None:
        self.manifest = manifest or Manifest()
        self.storages = dict(storages or {})
        self._memory: Memory | None = None

    def prepare(self) -> None:
        """Map every storage. Raises SourceUnavailable when one is missing or too short."""
        if self._memory is None:
            self._memory = Memory(self.manifest, self.storages, writable=True)

    def views(self, chunk: Chunk) -> Views:
        """The mapped memory a chunk lands in."""
        self.prepare()
        assert self._memory is not None
        return self._memory.target_views(chunk)

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None


@dataclass(frozen=True)
class TransferReport:
    """What a target may say about a transfer that succeeded. Times are Unix seconds.

    ``proof``: ``digest``: every byte was digested on both sides and the digests are equal;
    ``identity``: the memory itself was taken (``taken_fds``), device and inode agree, nothing was
    read: its content is to be digested later (``digest.storages_digests``). ``taken_fds``: this
    side's storage id -> descriptor, now the caller's. ``interface``: the local address that the bytes
    came in by; empty on the same host.
    """

    bytes_moved: int
    source_digest: str
    target_digest: str
    carrier: str
    began_at: float
    ended_at: float
    proof: Literal["digest", "identity"]
    blobs: dict[BlobName, tuple[int, bytes]]
    taken_fds: dict[int, int]
    interface: str = ""


@dataclass(frozen=True)
class ServeReport:
    """How a stream ended at its source. ``code`` is empty when the target confirmed the digest."""

    stream_id: str
    code: str
    message: str
    bytes_moved: int
    digest: str
