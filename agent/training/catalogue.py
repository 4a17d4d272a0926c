"""What a rank's tensors are called and where they are now: parameters, buffers, optimizer state.

Names are the same on every rank and in every process of a job: ``m0.`` and the module path for models,
``o0.`` and the parameter's name for optimizer state. Objects may be replaced at any time; whether one was
is asked at every fence and costs some tens of nanoseconds a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from .locality import local
from .refusals import Unprotectable
from .shards import fsdp_parameters
from .storages import is_large

Role = Literal["parameter", "frozen", "optimizer", "buffer"]


@dataclass(frozen=True, slots=True)
class Held:
    """One tensor of this rank. ``tensor`` is the local shard where the whole is distributed."""

    name: str
    role: Role
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Buffer:
    """A registered buffer; ``tensor`` None is a registered name without a tensor."""

    name: str
    module: nn.Module
    key: str
    tensor: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class OwnedState:
    """Optimizer state of one owner: which keys hold tensors, which do not."""

    name: str
    states: dict[Any, Any]
    owner: Any
    state: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    rest: list[str]

    def stays(self) -> bool:
        state = self.state
        return (
            self.states.get(self.owner) is state
            and len(state) == len(self.tensors) + len(self.rest)
            and all(state.get(key) is tensor for key, tensor in self.tensors.items())
        )


class Catalogue:
    """Names for everything in ``models`` and ``optimizers``. Raises Unprotectable for odd tensors."""

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self.models = list(models)
        self.optimizers = list(optimizers)
        self.refresh()

    def refresh(self) -> None:
        """Look everything up again."""
        self.modules = [
            (f"m{index}.{path}" if path else f"m{index}", module)
            for index, model in enumerate(self.models)
            for path, module in model.named_modules()
        ]
        self._sizes = self._size_of_modules()
        self._find_parameters()
        self.refresh_buffers()
        self._find_optimizer_state()
        self.held = [*self._held_parameters(), *self._held_buffers(), *self._held_states()]
        self._locals = [
            (p, p._local_tensor) for p in self.parameters.values() if hasattr(p, "_local_tensor")
        ]
        for held in self.held:
            _check(held)

    # --- parameters ----------------------------------------------------------------------------

    def _find_parameters(self) -> None:
        shards = _sharded_parameters(self.models)
        named: dict[str, nn.Parameter] = {}
        self._places: list[tuple[dict[str, Any], str, Any]] = []
        for path, module in self.modules:
            for key, found in module._parameters.items():
                parameter = shards.get((id(module), key), found)
                if (id(module), key) not in shards:
                    self._places.append((module._parameters, key, found))
                if parameter is not None:
                    named.setdefault(f"{path}.{key}", parameter)
        self.names: dict[int, str] = {}
        for name, parameter in named.items():
            self.names.setdefault(id(parameter), name)
        self.parameters = {name: named[name] for name in self.names.values()}
        self.trained: set[int] = set()
        for index, optimizer in enumerate(self.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for p, parameter in enumerate(group["params"]):
                    self.trained.add(id(parameter))
                    if id(parameter) not in self.names:
                        self.names[id(parameter)] = f"o{index}.g{g}.p{p}"
                        self.parameters[f"o{index}.g{g}.p{p}"] = parameter

    def _held_parameters(self) -> Iterator[Held]:
        for name, parameter in self.parameters.items():
            yield Held(
                name, "parameter" if id(parameter) in self.trained else "frozen", local(parameter)
            )

    # --- buffers -------------------------------------------------------------------------------

    def refresh_buffers(self) -> None:
        """Look the buffers up again: persistent or not, each object once."""
        found: list[Buffer] = []
        seen: set[int] = set()
        self._buffer_places: list[tuple[dict[str, Any], str, torch.Tensor | None]] = []
        for path, module in self.modules:
            for key, tensor in module._buffers.items():
                self._buffer_places.append((module._buffers, key, tensor))
                if tensor is None or id(tensor) not in seen:
                    seen.add(id(tensor))
                    found.append(Buffer(f"{path}.{key}", module, key, tensor))
        self.buffers = found

    def _held_buffers(self) -> Iterator[Held]:
        for buffer in self.buffers:
            if buffer.tensor is not None:
                yield Held(buffer.name, "buffer", local(buffer.tensor))

    def buffers_moved(self) -> bool:
        """True when a buffer was replaced by another tensor."""
        return not all(owner.get(key) is found for owner, key, found in self._buffer_places)

    # --- optimizer state -----------------------------------------------------------------------

    def _find_optimizer_state(self) -> None:
        self.owned: list[list[OwnedState]] = []
        for optimizer in self.optimizers:
            owned = []
            for owner, state in optimizer.state.items():
                if isinstance(state, dict):
                    tensors = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
                    rest = [key for key in state if key not in tensors]
                    name = self.owner_name(owner)
                    owned.append(OwnedState(name, optimizer.state, owner, state, tensors, rest))
            self.owned.append(owned)
        self._counts = self._count_optimizers()

    def _held_states(self) -> Iterator[Held]:
        for index, owned in enumerate(self.owned):
            for item in owned:
                for key, tensor in item.tensors.items():
                    yield Held(f"o{index}.{item.name}.{key}", "optimizer", local(tensor))

    def owner_name(self, owner: Any) -> str:
        """What an optimizer's state is kept under: a parameter's name, or a plain key."""
        if isinstance(owner, torch.Tensor):
            return self.names.get(id(owner), "unknown")
        return f"key:{owner!r:.100}"

    # --- was anything replaced? ----------------------------------------------------------------

    def _size_of_modules(self) -> int:
        return sum(
            len(m._parameters) + len(m._buffers) + len(m._modules) for _name, m in self.modules
        )

    def _count_optimizers(self) -> list[int]:
        counts = [len(optimizer.state) for optimizer in self.optimizers]
        return counts + [len(g["params"]) for o in self.optimizers for g in o.param_groups]

    def moved(self) -> bool:
        """True when anything but a buffer was replaced, added or taken away since ``refresh``."""
        return not (
            self._size_of_modules() == self._sizes
            and self._count_optimizers() == self._counts
            and all(owner.get(key) is found for owner, key, found in self._places)
            and all(p._local_tensor is shard for p, shard in self._locals)
            and all(item.stays() for owned in self.owned for item in owned)
        )

    def put_back_objects(self) -> None:
        """Parameters and buffers that were replaced since ``refresh`` stand in their places again.

        Those that FSDP2 swaps in and out are left to ``shards.ShardsInPlace``.
        """
        for owner, key, found in (*self._places, *self._buffer_places):
            owner[key] = found

    # --- where tensors are kept ----------------------------------------------------------------

    def in_arena(self, held: Held) -> bool:
        return is_large(held.tensor)

    def in_small(self, held: Held) -> bool:
        return held.role in ("parameter", "optimizer") and not is_large(held.tensor)

    def is_steady(self, held: Held) -> bool:
        """Large and written by nobody, as far as was seen: kept in the arena and watched."""
        return held.role in ("frozen", "buffer") and is_large(held.tensor)


def _check(held: Held) -> None:
    tensor = held.tensor
    if tensor.layout is not torch.strided:
        raise Unprotectable(
            "tensor_layout",
            f"{held.role} {held.name} is of layout {tensor.layout}: only dense is carried",
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise Unprotectable(
            "tensor_device",
            f"{held.role} {held.name} is on device {tensor.device}: cpu or cuda is carried",
        )


def _sharded_parameters(models: Sequence[nn.Module]) -> dict[tuple[int, str], nn.Parameter]:
    """(module id, key) -> sharded parameter, for every parameter that FSDP2 swaps in and out."""
    found: dict[tuple[int, str], nn.Parameter] = {}
    for parameter in fsdp_parameters(models):
        info = parameter._module_info
        found[(id(info.module), info.param_name)] = parameter.sharded_param
        for module, key in zip(info.shared_modules, info.shared_param_names, strict=True):
            found[(id(module), key)] = parameter.sharded_param
    return found
