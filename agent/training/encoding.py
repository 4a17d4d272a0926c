"""The one encoding of everything that is not raw tensor storage: a tag byte, then the value.

Exact by design: floats by their bits, dictionaries in their order and with any key, NumPy arrays and torch
tensors by bytes with their layout. Subclasses are other types: a value whose exact type is not listed is
refused by name when it is encoded. Nothing in a blob can name code to be run, and the decoder trusts no
byte: lengths are checked against what is left before anything is allocated, and the only error it raises
is DecodeFailed.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .encoding_arrays import (
    read_array,
    read_scalar,
    read_tensor,
    write_array,
    write_scalar,
    write_tensor,
)
from .encoding_wire import Reader, Refused, Writer
from .refusals import DecodeFailed

DEPTH_MAX = 64
_FACTORIES: dict[bytes, Callable[[], Any] | None] = {
    b"-": None, b"i": int, b"f": float, b"s": str, b"l": list, b"d": dict, b"e": set,
}  # fmt: skip
_FACTORY_TAGS = {factory: tag for tag, factory in _FACTORIES.items()}
_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


@dataclass(frozen=True)
class Encoded:
    """A value that was encoded before: its bytes stand in for it."""

    data: bytes


def encode(value: Any, name: str = "value") -> bytes:
    """Encode one value. Raises Refused with the path (``name['key'][0]``) of what it cannot hold."""
    writer = Writer()
    _write(writer, value, name, 0)
    return writer.joined()


def decode(data: bytes | bytearray | memoryview) -> Any:
    """The value that ``data`` holds, whole. Raises DecodeFailed on anything else."""
    reader = Reader(memoryview(data))
    try:
        value = _read(reader, 0)
    except DecodeFailed:
        raise
    except (
        ValueError,
        TypeError,
        OverflowError,
        RuntimeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise DecodeFailed(f"malformed value: {type(error).__name__}: {error}") from error
    if reader.left:
        raise DecodeFailed(f"{reader.left} bytes after the value")
    return value


def _write(writer: Writer, value: Any, name: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Refused(name, "is nested deeper than 64 levels, or contains itself")
    write = _WRITERS.get(type(value))
    if write is not None:
        write(writer, value, name, depth)
    elif isinstance(value, np.generic):
        write_scalar(writer, value, name)
    else:
        kind = type(value)
        raise Refused(
            name, f"is a {kind.__module__}.{kind.__qualname__}, which cannot be carried over"
        )


def _write_int(writer: Writer, value: int, name: str, depth: int) -> None:
    if -(1 << 63) <= value < 1 << 63:
        writer.raw(b"i" + struct.pack("<q", value))
    else:
        writer.tag(b"I")
        writer.blob(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _write_str(writer: Writer, value: str, name: str, depth: int) -> None:
    writer.tag(b"s")
    writer.blob(value.encode("utf-8", "surrogatepass"))


def _write_bytes(writer: Writer, value: bytes | bytearray, name: str, depth: int) -> None:
    writer.tag(b"b" if type(value) is bytes else b"B")
    writer.blob(value)


def _sequence_writer(tag: bytes) -> Callable[[Writer, Any, str, int], None]:
    def write(writer: Writer, value: Any, name: str, depth: int) -> None:
        writer.tag(tag)
        writer.number(len(value))
        for index, item in enumerate(value):
            _write(writer, item, f"{name}[{index}]", depth + 1)

    return write


def _set_writer(tag: bytes) -> Callable[[Writer, Any, str, int], None]:
    def write(writer: Writer, value: Any, name: str, depth: int) -> None:
        writer.tag(tag)
        writer.number(len(value))
        items = []
        for item in value:
            inner = Writer()
            _write(inner, item, f"{name}{{...}}", depth + 1)
            items.append(inner.joined())
        # A set has no order of its own: sorted bytes make equal sets encode alike in every process.
        for item in sorted(items):
            writer.raw(item)

    return write


def _write_pairs(writer: Writer, value: Any, name: str, depth: int) -> None:
    writer.number(len(value))
    for key, item in value.items():
        _write(writer, key, f"{name} key", depth + 1)
        _write(writer, item, f"{name}[{key!r:.80}]", depth + 1)


def _mapping_writer(tag: bytes) -> Callable[[Writer, Any, str, int], None]:
    def write(writer: Writer, value: Any, name: str, depth: int) -> None:
        writer.tag(tag)
        _write_pairs(writer, value, name, depth)

    return write


def _write_defaultdict(writer: Writer, value: Any, name: str, depth: int) -> None:
    factory = _FACTORY_TAGS.get(value.default_factory)
    if factory is None:
        raise Refused(name, f"is a defaultdict made by {value.default_factory!r:.80}")
    writer.raw(b"f" + factory)
    _write_pairs(writer, value, name, depth)


def _write_deque(writer: Writer, value: Any, name: str, depth: int) -> None:
    writer.raw(b"q" + struct.pack("<q", -1 if value.maxlen is None else value.maxlen))
    writer.number(len(value))
    for index, item in enumerate(value):
        _write(writer, item, f"{name}[{index}]", depth + 1)


def _write_fields(tag: bytes, fields: tuple[str, ...]) -> Callable[[Writer, Any, str, int], None]:
    def write(writer: Writer, value: Any, name: str, depth: int) -> None:
        writer.tag(tag)
        for field in fields:
            _write(writer, getattr(value, field), f"{name}.{field}", depth + 1)

    return write


def _write_dtype(writer: Writer, value: torch.dtype, name: str, depth: int) -> None:
    writer.tag(b"y")
    writer.blob(str(value).removeprefix("torch.").encode())


def _write_device(writer: Writer, value: torch.device, name: str, depth: int) -> None:
    writer.tag(b"v")
    writer.blob(str(value).encode())


_WRITERS: dict[type, Callable[[Writer, Any, str, int], None]] = {
    type(None): lambda writer, value, name, depth: writer.tag(b"N"),
    bool: lambda writer, value, name, depth: writer.tag(b"T" if value else b"F"),
    int: _write_int,
    float: lambda writer, value, name, depth: writer.raw(b"d" + struct.pack("<d", value)),
    complex: lambda writer, value, name, depth: writer.raw(
        b"c" + struct.pack("<dd", value.real, value.imag)
    ),
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytes,
    tuple: _sequence_writer(b"("),
    list: _sequence_writer(b"["),
    torch.Size: _sequence_writer(b"z"),
    set: _set_writer(b"e"),
    frozenset: _set_writer(b"E"),
    dict: _mapping_writer(b"{"),
    OrderedDict: _mapping_writer(b"o"),
    Counter: _mapping_writer(b"#"),
    defaultdict: _write_defaultdict,
    deque: _write_deque,
    Encoded: lambda writer, value, name, depth: writer.raw(value.data),
    range: _write_fields(b"r", ("start", "stop", "step")),
    slice: _write_fields(b"l", ("start", "stop", "step")),
    torch.dtype: _write_dtype,
    torch.device: _write_device,
    torch.Tensor: lambda writer, value, name, depth: write_tensor(writer, value, name),
    torch.nn.Parameter: lambda writer, value, name, depth: write_tensor(writer, value, name),
    np.ndarray: lambda writer, value, name, depth: write_array(writer, value, name),
}


def _read(reader: Reader, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise DecodeFailed("nested deeper than 64 levels")
    tag = reader.take(1).tobytes()
    read = _READERS.get(tag)
    if read is None:
        raise DecodeFailed(f"unknown tag {tag!r} at byte {reader.at - 1}")
    return read(reader, depth)


def _items(reader: Reader, depth: int) -> list[Any]:
    return [_read(reader, depth + 1) for _ in range(reader.count())]


def _pairs(reader: Reader, depth: int) -> list[tuple[Any, Any]]:
    return [(_read(reader, depth + 1), _read(reader, depth + 1)) for _ in range(reader.count(2))]


def _read_str(reader: Reader, depth: int) -> str:
    return reader.blob().tobytes().decode("utf-8", "surrogatepass")


def _read_defaultdict(reader: Reader, depth: int) -> Any:
    factory = reader.take(1).tobytes()
    if factory not in _FACTORIES:
        raise DecodeFailed(f"unknown default factory {factory!r}")
    return defaultdict(_FACTORIES[factory], _pairs(reader, depth))


def _read_deque(reader: Reader, depth: int) -> Any:
    (maxlen,) = struct.unpack("<q", reader.take(8))
    return deque(_items(reader, depth), None if maxlen == -1 else maxlen)


def _read_size(reader: Reader, depth: int) -> torch.Size:
    return torch.Size(_items(reader, depth))


def _read_range(reader: Reader, depth: int) -> range:
    return range(*(_read(reader, depth + 1) for _ in range(3)))


def _read_slice(reader: Reader, depth: int) -> slice:
    return slice(*(_read(reader, depth + 1) for _ in range(3)))


def _read_dtype(reader: Reader, depth: int) -> torch.dtype:
    name = reader.blob(64).tobytes().decode()
    if name not in _DTYPES:
        raise DecodeFailed(f"unknown torch dtype {name!r}")
    return _DTYPES[name]


_READERS: dict[bytes, Callable[[Reader, int], Any]] = {
    b"N": lambda reader, depth: None,
    b"T": lambda reader, depth: True,
    b"F": lambda reader, depth: False,
    b"i": lambda reader, depth: struct.unpack("<q", reader.take(8))[0],
    b"I": lambda reader, depth: int.from_bytes(reader.blob(), "little", signed=True),
    b"d": lambda reader, depth: struct.unpack("<d", reader.take(8))[0],
    b"c": lambda reader, depth: complex(*struct.unpack("<dd", reader.take(16))),
    b"s": _read_str,
    b"b": lambda reader, depth: reader.blob().tobytes(),
    b"B": lambda reader, depth: bytearray(reader.blob()),
    b"(": lambda reader, depth: tuple(_items(reader, depth)),
    b"[": _items,
    b"z": _read_size,
    b"e": lambda reader, depth: set(_items(reader, depth)),
    b"E": lambda reader, depth: frozenset(_items(reader, depth)),
    b"{": lambda reader, depth: dict(_pairs(reader, depth)),
    b"o": lambda reader, depth: OrderedDict(_pairs(reader, depth)),
    b"#": lambda reader, depth: Counter(dict(_pairs(reader, depth))),
    b"f": _read_defaultdict,
    b"q": _read_deque,
    b"r": _read_range,
    b"l": _read_slice,
    b"y": _read_dtype,
    b"v": lambda reader, depth: torch.device(reader.blob(64).tobytes().decode()),
    b"t": lambda reader, depth: read_tensor(reader),
    b"a": lambda reader, depth: read_array(reader),
    b"n": lambda reader, depth: read_scalar(reader),
}
