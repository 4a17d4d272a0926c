"""The copy of a rank's private state that another node keeps: exchanged inside the group before the vote,
so that the buddy's yes is the acknowledgement."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import torch

from .leaving import Apart
from .membership import Membership

_LENGTH = struct.Struct("<Q")
_TAG_FIRST, _TAG_REST = 101, 102
_FIRST_BYTES = 4096
_ROUND_BYTES = 4096


def composite(fence: bytes, prepared: bytes) -> bytes:
    """fence(s - 1) and prepared(s) as one blob: 8-byte little-endian length of the first, then both."""
    return _LENGTH.pack(len(fence)) + fence + prepared


def split(blob: bytes) -> tuple[bytes, bytes]:
    """Undo ``composite``. Raises ValueError when the length does not fit."""
    if len(blob) < _LENGTH.size:
        raise ValueError("a composite blob is at least 8 bytes long")
    (size,) = _LENGTH.unpack_from(blob)
    if size > len(blob) - _LENGTH.size:
        raise ValueError("the composite blob is shorter than it says")
    middle = _LENGTH.size + size
    return blob[_LENGTH.size : middle], blob[middle:]


@dataclass(frozen=True)
class Copies:
    """Who keeps whose copy. ``to`` None: nobody keeps mine; ``of`` None: I keep nobody's."""

    to: int | None
    of: int | None

    @classmethod
    def read(cls, buddies: dict[str, str], rank: int) -> Copies:
        """Raises ValueError when one rank would keep two copies: a slot holds one."""
        to = int(buddies[str(rank)]) if str(rank) in buddies else None
        of = sorted(int(owner) for owner, keeper in buddies.items() if int(keeper) == rank)
        if len(of) > 1:
            raise ValueError(f"rank {rank} cannot keep the copies of ranks {of}: one each")
        mine = of[0] if of else None
        return cls(None if to == rank else to, None if mine == rank else mine)


class Exchange:
    """One step's exchange, begun as soon as the blob is known and ended before the vote.

    Everybody sends ``capacity`` bytes, the blob's length first, and the rest, if any, in a second message:
    with a capacity that fits there is one hop. All ranks must give the same capacity.
    """

    def __init__(self, membership: Membership, copies: Copies, blob: bytes, capacity: int) -> None:
        side = membership.side
        if side is None:
            raise RuntimeError("no generation to exchange copies in")
        self._gloo, self._ending = side.gloo, side.ending
        self._received: bytes | None = None
        self._copies = copies
        self._capacity = max(capacity, _FIRST_BYTES)
        self._first = torch.empty(self._capacity, dtype=torch.uint8)
        self._first_work = None
        self._sends: list[Any] = []
        self._sent: list[torch.Tensor] = []
        if copies.of is not None:
            self._first_work = self._gloo.recv([self._first], copies.of, _TAG_FIRST)
        if copies.to is not None:
            self._send(copies.to, blob)

    def _send(self, to: int, blob: bytes) -> None:
        room = self._capacity - _LENGTH.size
        first = bytearray(self._capacity)
        _LENGTH.pack_into(first, 0, len(blob))
        first[_LENGTH.size : _LENGTH.size + min(room, len(blob))] = blob[:room]
        parts = [(first, _TAG_FIRST)]
        if len(blob) > room:
            parts.append((bytearray(blob[room:]), _TAG_REST))
        for part, tag in parts:
            tensor = torch.frombuffer(part, dtype=torch.uint8)
            self._sent.append(tensor)
            self._sends.append(self._gloo.send([tensor], to, tag))

    def end(self) -> bytes | None:
        """The blob of the rank whose copy I keep. Raises RuntimeError when the group broke."""
        self._ending.wait(Apart(self._pass))
        return self._received

    def _pass(self) -> None:
        if self._first_work is not None:
            self._first_work.wait()
            data = self._first.numpy().tobytes()
            (size,) = _LENGTH.unpack_from(data)
            received = data[_LENGTH.size : _LENGTH.size + size]
            if len(received) < size:
                rest = torch.empty(size - len(received), dtype=torch.uint8)
                self._gloo.recv([rest], self._copies.of, _TAG_REST).wait()
                received += rest.numpy().tobytes()
            self._received = received
        for work in self._sends:
            work.wait()


def capacity_for(largest: int) -> int:
    """What to send at once after a step whose largest blob was ``largest`` bytes."""
    return -(-(largest + largest // 8 + _LENGTH.size) // _ROUND_BYTES) * _ROUND_BYTES
