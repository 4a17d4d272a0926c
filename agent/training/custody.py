"""What this rank leaves with its agent: header page, slots, and the descriptors of its arenas."""

from __future__ import annotations

import os
import threading
from typing import Literal

from ..link import FDS_MAX, ArenaKept, ArenaName, ArenaShared, Layout, LinkMessage
from ..transfer.arena import Header, Slots

SlotName = Literal["small", "fence", "prepared", "buddy", "buddy_small", "micro"]
SLOT_NAMES: tuple[SlotName, ...] = (
    "small", "fence", "prepared", "buddy", "buddy_small", "micro",
)  # fmt: skip
BUDDY_ARENAS: tuple[ArenaName, ArenaName] = ("buddy0", "buddy1")
"""Another rank's arena kept here, by step parity."""
_FIRST_CAPACITY_BYTES = 64 * 1024
Packet = tuple[LinkMessage, list[int]]


class Custody:
    """Owns the shared pages. ``post`` sends one packet to the agent (a no-op while there is none)."""

    def __init__(self) -> None:
        self.header = Header.create()
        self._slots: dict[SlotName, Slots] = {
            name: Slots.create(name, _FIRST_CAPACITY_BYTES) for name in SLOT_NAMES
        }
        self._arenas: dict[ArenaName, tuple[int, bytes, list[int], list[int]]] = {}
        self._lock = threading.Lock()

    def slots(self, name: SlotName) -> Slots:
        return self._slots[name]

    def write(self, name: SlotName, rank: int, step: int, data: bytes) -> list[Packet]:
        """Store a blob; the packets to send when the pair had to grow."""
        if self._slots[name].write(rank, step, data):
            return []
        self._grow(name, len(data))
        if not self._slots[name].write(rank, step, data):
            raise ValueError(f"slot {name} cannot hold {len(data)} bytes")
        return [self.layout()]

    def _grow(self, name: SlotName, size: int) -> None:
        old = self._slots[name]
        new = Slots.create(name, max(2 * old.capacity_bytes, size + size // 2))
        for _rank, step in old.steps():
            blob = old.read(step)
            if blob is not None:
                new.write(blob.rank, blob.step, blob.data)
        self._slots[name] = new
        old.close()

    def layout(self) -> Packet:
        return Layout(), [self.header.fd, *(self._slots[name].fd for name in SLOT_NAMES)]

    def share(
        self,
        which: ArenaName,
        epoch: int,
        manifest: bytes,
        ids: list[int],
        fds: list[int],
    ) -> list[Packet]:
        """Packets that hand a whole arena over. Until the agent holds it the header stays unclean."""
        with self._lock:
            if which == "live":
                self.header.set("unclean", 1)
            elif which == "shadow":
                self.header.set("shadow", -1)
            self._arenas[which] = (epoch, manifest, list(ids), list(fds))
        return self._arena_packets(which)

    def _arena_packets(self, which: ArenaName) -> list[Packet]:
        epoch, manifest, ids, fds = self._arenas[which]
        paper = os.memfd_create("yoco-manifest", os.MFD_CLOEXEC)
        os.write(paper, manifest)
        size = FDS_MAX - 1
        chunks = [(ids[i : i + size], fds[i : i + size]) for i in range(0, len(ids), size)] or [
            ([], [])
        ]
        packets: list[Packet] = []
        for part, (some_ids, some_fds) in enumerate(chunks):
            message = ArenaShared(
                which=which, epoch=epoch, part=part,
                parts=len(chunks), storage_ids=some_ids,
            )  # fmt: skip
            packets.append((message, [paper, *some_fds] if part == 0 else list(some_fds)))
        self._papers = [*getattr(self, "_papers", []), paper]
        return packets

    def sent(self) -> None:
        """The packets made so far are in the socket: their manifests may be closed here."""
        papers, self._papers = getattr(self, "_papers", []), []
        for paper in papers:
            os.close(paper)

    def kept(self, message: ArenaKept) -> None:
        """The agent holds an arena. From the listener's thread."""
        with self._lock:
            held = self._arenas.get(message.which)
            if message.which == "live" and held is not None and held[0] == message.epoch:
                self.header.set("unclean", 0)

    def everything(self) -> list[Packet]:
        """What a new agent must be given: layout, then every arena; unclean until it answers."""
        with self._lock:
            self.header.set("unclean", 1)
        packets = [self.layout()]
        for which in list(self._arenas):
            packets += self._arena_packets(which)
        return packets
