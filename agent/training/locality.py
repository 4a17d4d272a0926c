"""The part of a tensor whose memory this process holds."""

from __future__ import annotations

import torch


def local(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor's local shard, else the tensor itself. Both share the memory; neither is a copy."""
    inner = getattr(tensor, "_local_tensor", None)
    return tensor if inner is None else inner


def dtype_name(tensor: torch.Tensor) -> str:
    """torch's name of the dtype without ``torch.``."""
    return str(tensor.dtype).removeprefix("torch.")
