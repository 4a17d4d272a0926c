"""NumPy arrays and scalars and torch tensors in the tagged encoding: bytes plus layout.

A tensor is written as the span of its storage that its shape and strides reach, so that expanded, strided,
conjugated and 8-bit float tensors come back with the same bits and the same strides.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .encoding_wire import Reader, Refused, Writer
from .refusals import DecodeFailed

DIMENSIONS_MAX = 64
_NUMPY_KINDS = "biufcSUmM"
_CONJUGATE, _NEGATIVE, _GRAD, _PARAMETER = 1, 2, 4, 8
_TENSOR_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.bits"))
}


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes that ``tensor`` reaches in its storage, as a uint8 tensor of shape (bytes,), no copy.

    For a dense tensor these are its elements; for a strided one the gaps are included.
    """
    size = span(tensor.shape, tensor.stride()) * tensor.element_size()
    start = tensor.storage_offset() * tensor.element_size()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    flat.set_(tensor.untyped_storage(), int(start), (size,), (1,))
    return flat


def span(shape: Any, strides: Any) -> int:
    """Number of elements from the first to the last one reached, inclusive."""
    if 0 in shape:
        return 0
    return 1 + sum(int((n - 1) * stride) for n, stride in zip(shape, strides, strict=True))


def bytes_view(tensor: torch.Tensor) -> memoryview:
    """``raw_bytes`` readable by the CPU; a copy only when the tensor is on a device."""
    array: Any = raw_bytes(tensor.detach()).cpu().numpy()
    return memoryview(array)


def write_tensor(writer: Writer, tensor: torch.Tensor, name: str) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or dtype not in _TENSOR_DTYPES:
        raise Refused(name, f"is a tensor of layout {tensor.layout} and type {tensor.dtype}")
    if tensor.device.type == "meta":
        raise Refused(name, "is a tensor on the meta device: it has no values")
    flags = (
        (_CONJUGATE if tensor.is_conj() else 0)
        | (_NEGATIVE if tensor.is_neg() else 0)
        | (_GRAD if tensor.requires_grad else 0)
        | (_PARAMETER if type(tensor) is torch.nn.Parameter else 0)
    )
    writer.tag(b"t")
    writer.blob(dtype.encode())
    writer.blob(tensor.device.type.encode())
    writer.raw(bytes([flags]))
    writer.number(tensor.dim())
    for number in (*tensor.shape, *tensor.stride()):
        writer.number(number)
    writer.blob(bytes_view(tensor))


def read_tensor(reader: Reader) -> torch.Tensor:
    name = reader.blob(64).tobytes().decode()
    dtype = _TENSOR_DTYPES.get(name)
    if dtype is None:
        raise DecodeFailed(f"unknown tensor type {name!r}")
    device = reader.blob(16).tobytes().decode()
    (flags,) = reader.take(1)
    shape, strides = _read_dimensions(reader, 2)
    data = reader.blob()
    if span(shape, strides) * dtype.itemsize != len(data):
        raise DecodeFailed(f"{len(data)} bytes do not make a {name} tensor of shape {shape}")
    return _place(_rebuild(dtype, shape, strides, data), flags, device)


def _read_dimensions(reader: Reader, rows: int) -> list[tuple[int, ...]]:
    count = reader.number()
    if count > DIMENSIONS_MAX:
        raise DecodeFailed(f"{count} dimensions")
    found = [tuple(reader.number() for _ in range(count)) for _ in range(rows)]
    if any(number >= 1 << 62 for row in found for number in row):
        raise DecodeFailed("a dimension beyond all memory")
    return found


def _rebuild(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], data: memoryview
) -> torch.Tensor:
    flat = torch.empty(len(data), dtype=torch.uint8)
    if len(data):
        flat.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
    return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), 0, shape, strides)


def _place(tensor: torch.Tensor, flags: int, device: str) -> torch.Tensor:
    if flags & _CONJUGATE:
        tensor = torch._conj(tensor)  # a lazy view: the bits stay as they are
    if flags & _NEGATIVE:
        tensor = torch._neg_view(tensor)
    if device not in ("cpu", "cuda"):
        raise DecodeFailed(f"a tensor of device {device!r}")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise DecodeFailed("a tensor of a CUDA device, and there is none here")
        tensor = tensor.to("cuda")
    if flags & _PARAMETER:
        return torch.nn.Parameter(tensor, requires_grad=bool(flags & _GRAD))
    return tensor.requires_grad_() if flags & _GRAD else tensor


def _check_numpy(dtype: np.dtype[Any], name: str) -> None:
    if dtype.kind not in _NUMPY_KINDS:
        raise Refused(name, f"is a NumPy value of type {dtype}, which cannot be carried over")
    if dtype.itemsize == 0:
        raise Refused(name, "is a NumPy value of a type without bytes")


def write_array(writer: Writer, array: np.ndarray[Any, Any], name: str) -> None:
    _check_numpy(array.dtype, name)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    writer.tag(b"a")
    writer.blob(array.dtype.str.encode())
    writer.raw(b"F" if fortran else b"C")
    writer.number(array.ndim)
    for length in array.shape:
        writer.number(length)
    writer.blob(array.tobytes("F" if fortran else "C"))


def _read_numpy_dtype(reader: Reader) -> np.dtype[Any]:
    text = reader.blob(32).tobytes().decode("ascii")
    if len(text) < 3 or text[0] not in "<>|=" or text[1] not in _NUMPY_KINDS or "," in text:
        raise DecodeFailed(f"unknown NumPy type {text!r}")
    dtype = np.dtype(text)
    if dtype.itemsize == 0:
        raise DecodeFailed(f"a NumPy type without bytes: {text!r}")
    return dtype


def read_array(reader: Reader) -> np.ndarray[Any, Any]:
    dtype = _read_numpy_dtype(reader)
    order: Any = reader.take(1).tobytes().decode("latin-1")
    (shape,) = _read_dimensions(reader, 1)
    data = reader.blob()
    if order not in ("C", "F") or math.prod(shape) * dtype.itemsize != len(data):
        raise DecodeFailed(f"{len(data)} bytes do not make a {dtype} array of shape {shape}")
    if not len(data):
        return np.empty(shape, dtype, order)
    flat = np.frombuffer(data, dtype=dtype)
    return flat.reshape(shape, order=order).copy("K")


def write_scalar(writer: Writer, value: np.generic, name: str) -> None:
    if type(value) is not value.dtype.type:
        raise Refused(name, f"is a {type(value).__qualname__}, which cannot be carried over")
    _check_numpy(value.dtype, name)
    writer.tag(b"n")
    writer.blob(value.dtype.str.encode())
    writer.blob(value.tobytes())


def read_scalar(reader: Reader) -> np.generic:
    dtype = _read_numpy_dtype(reader)
    data = reader.blob()
    if len(data) != dtype.itemsize:
        raise DecodeFailed(f"{len(data)} bytes do not make a {dtype}")
    value: np.generic = np.frombuffer(bytes(data), dtype=dtype)[0]
    return value
