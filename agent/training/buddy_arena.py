"""Setting ``buddy``: a copy of what the optimizer writes, kept by the agent of another node.

Sent from the live arena while the next step computes, on a group of its own, so that votes need not queue
behind it. Ended before the vote: the keeper's yes says that the copy is whole. The keeper has two arenas, by
step parity, for the owner's node may be lost while a copy is under way: the one before is whole then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from ..transfer.manifest import Manifest
from .buddy import Copies
from .custody import BUDDY_ARENAS
from .group import InnerGroup
from .leaving import Apart, Ending
from .session import Session
from .shadow import flat, shared_storage
from .state import RankState
from .storages import check_room

_TAG_HEAD, _TAG_WORDS, _TAG_STORAGES = 1, 2, 16


@dataclass
class _Kept:
    """The memory for one step parity of another rank's arena."""

    manifest: Manifest
    storages: dict[int, torch.UntypedStorage]


@dataclass
class _Passing:
    """One step's copy under way. What arrived is told to the agent once it is whole."""

    step: int
    copies: Copies
    small: bytes
    epoch: int
    manifest: Manifest | None
    storages: list[torch.Tensor]
    error: BaseException | None = None
    arrived_small: bytes | None = None
    new: _Kept | None = None
    bytes_sent: int = 0
    seconds: float = 0.0
    held: list[torch.Tensor] = field(default_factory=list)
    """what gloo still reads from"""


class BuddyArena:
    """Sends this rank's arena and keeps another's. ``begin`` at a fence, ``finish`` before the vote."""

    def __init__(self, session: Session, state: RankState) -> None:
        self._session = session
        self._state = state
        self._kept: dict[int, _Kept] = {}
        self._told: dict[int, int] = {}
        """step parity -> epoch of the manifest the keeper has"""
        self._epochs = 0
        self._thread: Apart | None = None
        self._ending = Ending()
        """of the group it passes through"""
        self._passing: _Passing | None = None
        self.bytes_sent = 0
        """of the last copy"""
        self.copy_s = 0.0
        """how long it took, beside the training thread"""
        self.wait_s = 0.0
        """how long the training thread waited for its end"""

    def new_keepers(self) -> None:
        """A generation has begun: who keeps mine knows nothing of it yet."""
        self._join()
        self._told = {}

    def begin(self, step: int, small: bytes, copies: Copies) -> None:
        """Start sending the arena of fence ``step`` and receiving the one that is kept here."""
        self._join()
        bulk = self._session.membership.bulk
        if bulk is None:
            return
        if copies.of is not None:
            self._session.header.set(f"buddy_step_{step % 2}", -1)
        arena = self._state.arena
        storages = [flat(storage) for storage in arena.storages().values()]
        passing = _Passing(step, copies, small, arena.epoch, arena.manifest, storages)
        self._passing, self._ending = passing, bulk.ending
        self._thread = Apart(lambda: self._pass(passing, bulk))

    def finish(self) -> None:
        """Return when both copies are whole and the agent holds what was received.

        Raises RuntimeError when the generation broke, and what keeping the copy raised.
        """
        began = time.perf_counter()
        passing = self._join()
        if passing is None:
            return
        self.wait_s = time.perf_counter() - began
        if passing.error is not None:
            raise passing.error
        self.bytes_sent, self.copy_s = passing.bytes_sent, passing.seconds
        self._keep(passing)

    def _join(self) -> _Passing | None:
        passing, self._passing = self._passing, None
        thread, self._thread = self._thread, None
        if passing is not None and thread is not None:
            try:
                self._ending.wait(thread)
            except Exception as error:  # noqa: BLE001 - of the thread: raised by finish(), dropped else
                passing.error = error
        return passing

    def _keep(self, passing: _Passing) -> None:
        """Hand what arrived to the agent; the header says last that it is whole."""
        session, owner, parity = self._session, passing.copies.of, passing.step % 2
        if owner is None or passing.arrived_small is None:
            return
        if passing.new is not None:
            self._kept[parity] = passing.new
            self._epochs += 1
            storages = passing.new.storages
            fds = [storage._share_fd_cpu_()[0] for storage in storages.values()]
            session.send_packets(
                session.custody.share(
                    BUDDY_ARENAS[parity], self._epochs, passing.new.manifest.encode(), list(storages), fds
                )
            )  # fmt: skip
        session.store_slot("buddy_small", owner, passing.step, passing.arrived_small)
        session.header.set(f"buddy_rank_{parity}", owner)
        session.header.set(f"buddy_step_{parity}", passing.step)

    # --- on the thread -------------------------------------------------------------------------

    def _pass(self, passing: _Passing, bulk: InnerGroup) -> None:
        began = time.perf_counter()
        works = self._send(bulk.gloo, passing)
        if passing.copies.of is not None:
            self._receive(bulk.gloo, passing, passing.copies.of)
        for work in works:
            work.wait()
        passing.seconds = time.perf_counter() - began

    def _send(self, gloo: Any, passing: _Passing) -> list[Any]:
        to, manifest, parity = passing.copies.to, passing.manifest, passing.step % 2
        if to is None or manifest is None:
            return []
        told = self._told.get(parity) == passing.epoch
        words = b"" if told else manifest.encode()
        head = torch.tensor([passing.step, len(words), len(passing.small)], dtype=torch.int64)
        both = torch.frombuffer(bytearray(words + passing.small), dtype=torch.uint8)
        passing.held = [head, both]
        passing.bytes_sent = sum(tensor.numel() for tensor in (both, *passing.storages))
        works = [gloo.send([head], to, _TAG_HEAD), gloo.send([both], to, _TAG_WORDS)]
        works += [gloo.send([t], to, _TAG_STORAGES + i) for i, t in enumerate(passing.storages)]
        self._told[parity] = passing.epoch
        return works

    def _receive(self, gloo: Any, passing: _Passing, owner: int) -> None:
        head = torch.empty(3, dtype=torch.int64)
        gloo.recv([head], owner, _TAG_HEAD).wait()
        step, manifest_bytes, small_bytes = head.tolist()
        if step != passing.step:
            raise RuntimeError(f"rank {owner} sent its state of step {step}, not {passing.step}")
        words = torch.empty(manifest_bytes + small_bytes, dtype=torch.uint8)
        gloo.recv([words], owner, _TAG_WORDS).wait()
        text = words.numpy().tobytes()
        kept = self._kept.get(step % 2)
        if manifest_bytes:
            kept = passing.new = self._room_for(Manifest.decode(text[:manifest_bytes]), kept)
        if kept is None:
            raise RuntimeError(f"rank {owner} sent storages that nobody described")
        targets = [flat(storage) for storage in kept.storages.values()]
        works = [gloo.recv([t], owner, _TAG_STORAGES + i) for i, t in enumerate(targets)]
        for work in works:
            work.wait()
        passing.arrived_small = text[manifest_bytes:]

    @staticmethod
    def _room_for(manifest: Manifest, before: _Kept | None) -> _Kept:
        """Storages in the order of the manifest; those of the right size are used again."""
        have = dict(before.storages) if before is not None else {}
        kept: dict[int, torch.UntypedStorage] = {}
        check_room(sum(s.bytes for s in manifest.storages if _size(have.get(s.id)) != s.bytes))
        for entry in manifest.storages:
            old = have.get(entry.id)
            fits = old is not None and old.nbytes() == entry.bytes
            kept[entry.id] = old if old is not None and fits else shared_storage(entry.bytes)
        return _Kept(manifest, kept)


def _size(storage: torch.UntypedStorage | None) -> int:
    return -1 if storage is None else storage.nbytes()
