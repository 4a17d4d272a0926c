"""Notices writes to what only an optimizer may write, made outside its step: clipped or averaged weights.

Such a write cannot be carried over a failure: neither custody nor a replica shows whether it was made
already, so that whoever finishes the step makes it twice or never. A tensor's version is no proof, ``.data``
writes without raising it: everything is read again in the first steps, one window each time afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xxhash
from torch import nn

from .catalogue import Held
from .encoding_arrays import bytes_view
from .refusals import Unprotectable
from .steady import CHECKED_BYTES_MAX, WINDOW_BYTES, version_of

WHOLE_NOTES = 7
"""how often everything is read: three times before the first step, then after the optimizer and at the
fence of two steps"""
Window = tuple[Held, int, bytes]


def refuse_writing_modules(models: Sequence[nn.Module]) -> None:
    """Raise Unprotectable for modules of torch that write their weights in forward."""
    for index, model in enumerate(models):
        for path, module in model.named_modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
                raise Unprotectable(
                    "module_writes_weights",
                    f"m{index}.{path} is an {type(module).__name__} with max_norm, which scales its "
                    "weights in forward: whoever computes a torn step again would scale them twice. Scale "
                    "them in optimizer.register_step_post_hook",
                )


class OutsideWatch:
    """``written`` tells what moved since ``note``."""

    def __init__(self) -> None:
        self._source: Sequence[Held] | None = None
        self._held: list[Held] = []
        self._tensors: list[torch.Tensor] = []
        self._versions: list[int] | None = None
        self._windows: list[Window] = []
        self._notes = 0
        self._next = (0, 0)

    def note(self, held: Sequence[Held]) -> None:
        """Of these, what optimizers write is as it should be now. A list that was given before is known."""
        if held is not self._source:
            self._source = held
            self._held = [item for item in held if item.role in ("parameter", "optimizer")]
            self._tensors = [item.tensor for item in self._held]
        self._versions = _versions(self._tensors)
        self._choose()

    def renew(self, held: Sequence[Held]) -> None:
        """``note`` right after ``written``, which has read every version."""
        if held is self._source and self._versions is not None:
            self._choose()
        else:
            self.note(held)

    def _choose(self) -> None:
        self._notes += 1
        self._windows = self._everything() if self._notes <= WHOLE_NOTES else self._one()

    def forget(self) -> None:
        """They are being put back: nothing is known of them until the next ``note``."""
        self._versions, self._windows = None, []

    def written(self) -> list[str]:
        """Names of tensors that were seen to move since ``note``."""
        found = [item.name for item, at, kept in self._windows if _read(item, at) != kept]
        before, now = self._versions, _versions(self._tensors)
        if before is not None and before != now:
            pairs = zip(self._held, before, now, strict=True)
            found += [item.name for item, old, new in pairs if old != new]
            self._versions = now
        return found

    def _everything(self) -> list[Window]:
        found: list[Window] = []
        left = CHECKED_BYTES_MAX
        for item in self._held:
            size = _size(item)
            left -= size
            if left < 0:
                break
            found += [(item, at, _read(item, at)) for at in range(0, size, WINDOW_BYTES)]
        return found

    def _one(self) -> list[Window]:
        if not self._held:
            return []
        index, at = self._next
        item = self._held[index % len(self._held)]
        size = _size(item)
        last = at + WINDOW_BYTES >= size
        self._next = ((index + 1) % len(self._held), 0) if last else (index, at + WINDOW_BYTES)
        return [(item, at, _read(item, at))] if at < size else []


def _size(item: Held) -> int:
    """0 for a view with gaps, in which others may write."""
    size = len(bytes_view(item.tensor))
    return size if size == item.tensor.numel() * item.tensor.element_size() else 0


def _read(item: Held, at: int) -> bytes:
    return xxhash.xxh3_128_digest(bytes_view(item.tensor)[at : at + WINDOW_BYTES])


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # inference tensors among them
        return [version_of(tensor) for tensor in tensors]
