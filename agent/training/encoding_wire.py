"""Bytes out and bytes in for the tagged encoding: no value is known here."""

from __future__ import annotations

import struct

from .refusals import DecodeFailed

_NUMBER = struct.Struct("<Q")


class Refused(Exception):
    """A value the encoding cannot hold. ``name`` is its path, ``reason`` continues the sentence."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason


class Writer:
    """Collects parts; ``joined`` copies them once."""

    def __init__(self) -> None:
        self._parts: list[bytes | bytearray | memoryview] = []

    def tag(self, tag: bytes) -> None:
        self._parts.append(tag)

    def raw(self, data: bytes | bytearray | memoryview) -> None:
        self._parts.append(data)

    def number(self, value: int) -> None:
        self._parts.append(_NUMBER.pack(value))

    def blob(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes with their length in front. A memoryview must be of bytes and contiguous."""
        self._parts.append(_NUMBER.pack(len(data)))
        self._parts.append(data)

    def joined(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """A cursor over hostile bytes: never reads, and never promises, beyond their end."""

    def __init__(self, data: memoryview) -> None:
        self._data = data.cast("B") if data.format != "B" or data.ndim != 1 else data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, size: int) -> memoryview:
        if size > self.left:
            raise DecodeFailed(f"{size} bytes wanted at byte {self.at}, {self.left} left")
        part = self._data[self.at : self.at + size]
        self.at += size
        return part

    def number(self) -> int:
        value: int = _NUMBER.unpack(self.take(8))[0]
        return value

    def count(self, bytes_each: int = 1) -> int:
        """How many items follow; each takes at least ``bytes_each`` bytes, so a lie is seen at once."""
        value = self.number()
        if value * bytes_each > self.left:
            raise DecodeFailed(f"{value} items promised with {self.left} bytes left")
        return value

    def blob(self, most: int | None = None) -> memoryview:
        size = self.number()
        if most is not None and size > most:
            raise DecodeFailed(f"{size} bytes where at most {most} can be")
        return self.take(size)
