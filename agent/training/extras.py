"""What the script names itself: anything with state_dict and load_state_dict, or a mutable container."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from .locality import local
from .refusals import Unprotectable

_FOUND = "yoco.found_inf"
_CONTAINERS = (dict, list, set, deque, bytearray, np.ndarray, torch.Tensor)


class Extra:
    """One named thing: read as an encodable value, put back into the same object."""

    def __init__(self, name: str, thing: Any) -> None:
        self.thing = thing
        self._stateful = callable(getattr(thing, "state_dict", None)) and callable(
            getattr(thing, "load_state_dict", None)
        )
        if not self._stateful and not isinstance(thing, _CONTAINERS):
            raise Unprotectable(
                "extra_not_restorable",
                f"{name} is a {type(thing).__module__}.{type(thing).__qualname__}: give an object with "
                "state_dict and load_state_dict, a generator, or a dict, list, set, deque, array, tensor",
            )

    def _read(self) -> Any:
        if not self._stateful:
            return self.thing
        state = self.thing.state_dict()
        found = _overflows(self.thing)
        return {**state, _FOUND: found} if found else state

    def capture(self) -> Any:
        """An encodable value; of a distributed tensor the local shard."""
        return _shards_only(self._read())

    def restore(self, value: Any) -> None:
        thing = self.thing
        value = _distributed_again(value, self._read())
        if self._stateful:
            if isinstance(thing, torch.amp.GradScaler):
                _put_overflows(thing, value.pop(_FOUND, None))
            thing.load_state_dict(value)
        elif isinstance(thing, torch.Tensor):
            with torch.no_grad():
                thing.copy_(value)
        elif isinstance(thing, np.ndarray):
            thing[...] = value
        elif isinstance(thing, bytearray):
            thing[:] = value
        elif isinstance(thing, list | deque):
            value = _into(thing, value)
            thing.clear()
            thing.extend(value)
        else:
            value = _into(thing, value)
            thing.clear()
            thing.update(value)


def _overflows(thing: Any) -> list[list[torch.Tensor]]:
    """What a GradScaler found in the gradients of each optimizer since its last update: it is not in its
    ``state_dict``, and its update, which comes after the step, acts on it."""
    if not isinstance(thing, torch.amp.GradScaler) or not thing.is_enabled():
        return []
    states = thing._per_optimizer_states.values()
    return [list(state["found_inf_per_device"].values()) for state in states]


def _put_overflows(scaler: torch.amp.GradScaler, saved: list[list[torch.Tensor]] | None) -> None:
    """What a step that is run without the other ranks found in its gradients becomes what the step had found.

    None is between two steps: what the torn step unscaled is forgotten with its gradients.
    """
    if saved is None:
        if scaler.is_enabled():
            scaler._per_optimizer_states.clear()
        return
    for here, found in zip(_overflows(scaler), saved, strict=False):
        for tensor, value in zip(here, found, strict=False):
            tensor.copy_(value)


def _into(here: Any, value: Any) -> Any:
    """``value``, with every tensor that is here already written in place: a script may know it by itself."""
    if isinstance(here, torch.Tensor) and isinstance(value, torch.Tensor):
        alike = (here.shape, here.dtype, here.layout) == (value.shape, value.dtype, value.layout)
        if not alike or here is value:
            return value
        with torch.no_grad():
            here.copy_(value)
        return here
    if isinstance(here, dict) and isinstance(value, dict):
        for key in value.keys() & here.keys():
            value[key] = _into(here[key], value[key])
    elif isinstance(here, list | deque) and type(value) is type(here) and len(value) == len(here):
        for index, item in enumerate(value):
            value[index] = _into(here[index], item)
    return value


def _shards_only(value: Any) -> Any:
    if isinstance(value, DTensor):
        return local(value)
    if isinstance(value, Mapping) and any(map(_holds_shards, value.values())):
        return {key: _shards_only(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and any(map(_holds_shards, value)):
        return type(value)(_shards_only(item) for item in value)
    return value


def _holds_shards(value: Any) -> bool:
    return isinstance(value, DTensor | Mapping | list | tuple)


def _distributed_again(value: Any, like: Any) -> Any:
    """``value`` with shards made distributed where ``like``, the present state, has them so."""
    if isinstance(like, DTensor) and isinstance(value, torch.Tensor):
        return DTensor(value, like._spec, requires_grad=like.requires_grad)  # type: ignore[no-untyped-call]
    if isinstance(like, Mapping) and isinstance(value, dict):
        for key in value.keys() & like.keys():
            value[key] = _distributed_again(value[key], like[key])
    elif isinstance(like, list | tuple) and type(value) is type(like) and len(value) == len(like):
        return type(value)(_distributed_again(*pair) for pair in zip(value, like, strict=True))
    return value
