"""Private tensors: buffers and frozen parameters, those that move or are small by copy, the rest watched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from .catalogue import Buffer, Catalogue, Held
from .locality import dtype_name, local
from .packs import Pack, Shape, parts_of, put_bytes
from .refusals import RestoreFailed
from .steady import SteadyWatch


class PrivateTensors:
    """What is copied at every fence, and the watch over what is not."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.watch = SteadyWatch()
        self.refresh()

    def refresh(self) -> None:
        """The catalogue has changed."""
        steady = [held for held in self._catalogue.held if self._catalogue.is_steady(held)]
        self.watch.fickle.update(self._averages())
        self.watch.watch(steady)
        self._repack()

    def _repack(self) -> None:
        self.pack = Pack([held for held in self._private() if self._copied(held)])
        self._without = [b.name for b in self._catalogue.buffers if b.tensor is None]

    def _averages(self) -> list[str]:
        """Averaged models will move, be it only after many steps: the first time must not be the torn one."""
        modules = self._catalogue.modules
        paths = tuple(f"{path}." for path, module in modules if isinstance(module, AveragedModel))
        return [held.name for held in self._private() if held.name.startswith(paths)]

    def _private(self) -> list[Held]:
        return [held for held in self._catalogue.held if held.role in ("frozen", "buffer")]

    def _copied(self, held: Held) -> bool:
        return not self._catalogue.is_steady(held) or held.name in self.watch.fickle

    def look(self) -> None:
        """Look for steady tensors that moved: they are copied from now on."""
        if self.watch.moved():
            self._repack()

    def capture(self) -> dict[str, Any]:
        return {**self.pack.capture(), "none": self._without}

    # --- back ----------------------------------------------------------------------------------

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise RestoreFailed, nothing changed, when other tensors were saved than exist here."""
        parts = parts_of(saved)
        registered = {b.name for b in self._catalogue.buffers}
        here = registered | {held.name for held in self._private()}
        must = {h.name for h in self._private() if not self._catalogue.is_steady(h)}
        there = set(parts) | set(saved["none"])
        odd = sorted((there - here) | (must - there))
        if odd:
            raise RestoreFailed(
                "tensors_differ", f"buffers differ from the saved ones: {', '.join(odd)[:300]}"
            )

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Put back what ``check`` accepted. A buffer of another shape becomes another tensor."""
        if list(saved["shapes"]) == self.pack.shapes and saved["none"] == self._without:
            self.pack.restore(saved)
            return
        parts = parts_of(saved)
        buffers = {b.name: b for b in self._catalogue.buffers}
        tensors = {held.name: held.tensor for held in self._private()}
        for name in saved["none"]:
            buffers[name].module._buffers[buffers[name].key] = None
        for name, (shape, data) in parts.items():
            target = tensors.get(name)
            if target is None or not _fits(target, shape):
                target = _register(buffers.get(name), shape)
            put_bytes(target, data)
        self.watch.fickle.update(n for n in parts if n in tensors and self._steady_here(n))
        self._repack()

    def _steady_here(self, name: str) -> bool:
        return any(h.name == name and self._catalogue.is_steady(h) for h in self._private())


def _fits(tensor: torch.Tensor, shape: Shape) -> bool:
    _name, dtype, sizes, strides, _bytes = shape
    return (dtype_name(tensor), tuple(tensor.shape), tensor.stride()) == (dtype, sizes, strides)


def _register(buffer: Buffer | None, shape: Shape) -> torch.Tensor:
    """A new tensor for a buffer that the script replaces by tensors of other shapes."""
    name, dtype, sizes, strides, _bytes = shape
    old = None if buffer is None else buffer.tensor
    if buffer is None or (old is not None and local(old) is not old):
        raise RestoreFailed("tensor_shape", f"{name} has another shape than the saved one")
    device = "cpu" if old is None else old.device
    made = torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype), device=device)
    buffer.module._buffers[buffer.key] = made
    return made
