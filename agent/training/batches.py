"""A batch's hash: what a rank trained on, in 16 bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import xxhash

from .encoding import encode
from .encoding_arrays import bytes_view
from .encoding_wire import Refused
from .locality import dtype_name, local

_DEPTH_MAX = 32


def batch_hash(batch: Any) -> str:
    """xxh3-128 (hexadecimal) over the batch: tensor bytes with shape and dtype, and encodable leaves.

    Containers are walked by what they hold; a leaf that cannot be encoded counts by its type alone.
    """
    hasher = xxhash.xxh3_128()
    _feed(hasher, batch, 0)
    return hasher.hexdigest()


def tensor_into(hasher: Any, tensor: torch.Tensor) -> None:
    """Shape, dtype and elements in logical order: strides do not count."""
    tensor = local(tensor.detach())
    hasher.update(f"t{dtype_name(tensor)}{tuple(tensor.shape)}".encode())
    if tensor.layout is not torch.strided:
        hasher.update(str(tensor.layout).encode())
        tensor = tensor.to_dense()
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    hasher.update(bytes_view(plain))


def _feed(hasher: Any, value: Any, depth: int) -> None:
    if isinstance(value, torch.Tensor):
        tensor_into(hasher, value)
    elif depth < _DEPTH_MAX and isinstance(value, Mapping):
        hasher.update(f"m{len(value)}".encode())
        for key, item in value.items():
            _feed(hasher, key, depth + 1)
            _feed(hasher, item, depth + 1)
    elif depth < _DEPTH_MAX and isinstance(value, list | tuple):
        hasher.update(f"s{len(value)}".encode())
        for item in value:
            _feed(hasher, item, depth + 1)
    elif depth < _DEPTH_MAX and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _feed(hasher, getattr(value, field.name), depth + 1)
    else:
        _leaf(hasher, value)


def _leaf(hasher: Any, value: Any) -> None:
    try:
        hasher.update(encode(value))
    except Refused:
        hasher.update(f"?{type(value).__module__}.{type(value).__qualname__}".encode())
