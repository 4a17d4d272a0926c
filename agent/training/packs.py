"""Many tensors as one run of bytes, with a description that is encoded once and not at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import xxhash

from .catalogue import Held
from .encoding import Encoded, encode
from .encoding_arrays import raw_bytes
from .locality import dtype_name
from .refusals import RestoreFailed

Shape = tuple[str, str, tuple[int, ...], tuple[int, ...], int]
"""name, dtype, shape, strides, bytes"""


class Pack:
    """Reads and writes ``held`` by bytes. Valid while ``stays()``."""

    def __init__(self, held: Sequence[Held]) -> None:
        self.held = list(held)
        self._tensors = [item.tensor for item in self.held]
        self._pointers = [tensor.data_ptr() for tensor in self._tensors]
        self._raw = [raw_bytes(tensor.detach()) for tensor in self._tensors]
        self._views = [_view(raw) for raw in self._raw]
        self.shapes: list[Shape] = [
            (
                item.name,
                dtype_name(item.tensor),
                tuple(item.tensor.shape),
                tuple(item.tensor.stride()),
                raw.numel(),
            )
            for item, raw in zip(self.held, self._raw, strict=True)
        ]
        self._described = Encoded(encode(self.shapes))
        self.layout = xxhash.xxh3_128_hexdigest(self._described.data)
        self.bytes = sum(raw.numel() for raw in self._raw)

    def stays(self) -> bool:
        return [tensor.data_ptr() for tensor in self._tensors] == self._pointers

    def capture(self) -> dict[str, Any]:
        data = b"".join(
            view if view is not None else raw.cpu().numpy().tobytes()
            for view, raw in zip(self._views, self._raw, strict=True)
        )
        return {"shapes": self._described, "data": data}

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise RestoreFailed unless ``saved`` describes exactly the tensors of this pack."""
        if list(saved["shapes"]) != self.shapes:
            here = {shape[0]: shape for shape in self.shapes}
            there = {shape[0]: shape for shape in saved["shapes"]}
            odd = sorted(n for n in here.keys() | there.keys() if here.get(n) != there.get(n))
            raise RestoreFailed(
                "tensors_differ", f"tensors differ from the saved ones: {', '.join(odd)[:300]}"
            )
        if len(saved["data"]) != self.bytes:
            raise RestoreFailed("tensors_differ", f"{len(saved['data'])} bytes of {self.bytes}")

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Overwrite in place what ``check`` accepted."""
        source = (
            torch.frombuffer(bytearray(saved["data"]), dtype=torch.uint8) if self.bytes else None
        )
        at = 0
        for raw in self._raw:
            size = raw.numel()
            if size and source is not None:
                raw.copy_(source[at : at + size])
            at += size


def parts_of(saved: Mapping[str, Any]) -> dict[str, tuple[Shape, bytes]]:
    """name -> (shape, bytes) of a captured pack, for tensors that must be put back one by one.

    Raises RestoreFailed when the bytes do not add up.
    """
    found: dict[str, tuple[Shape, bytes]] = {}
    at = 0
    for shape in saved["shapes"]:
        found[shape[0]] = (shape, saved["data"][at : at + shape[4]])
        at += shape[4]
    if at != len(saved["data"]):
        raise RestoreFailed(
            "tensors_differ", f"{len(saved['data'])} bytes where {at} are described"
        )
    return found


def put_bytes(tensor: torch.Tensor, data: bytes) -> None:
    """Overwrite the bytes a tensor reaches. Raises RestoreFailed when their number differs."""
    raw = raw_bytes(tensor.detach())
    if raw.numel() != len(data):
        raise RestoreFailed(
            "bytes_differ", f"{len(data)} bytes for a tensor of {raw.numel()} bytes"
        )
    if data:
        raw.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def _view(raw: torch.Tensor) -> memoryview | None:
    return memoryview(raw.numpy()) if raw.device.type == "cpu" else None  # type: ignore[arg-type]
