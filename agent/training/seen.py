"""What the script has and did not hand over: stateful things that its names lead to.

Looked for where scripts keep them: globals of the script, locals of the functions that ``protect`` was called
from, and, for optimizers and schedulers, anywhere in the process.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from .generators import is_generator

if TYPE_CHECKING:
    from .state import RankState

_OWN = __name__.rpartition(".")[0].rpartition(".")[0] + "."
"""frames of this package are not the script's"""
_ANYWHERE = (torch.optim.Optimizer, LRScheduler)


def strangers(state: RankState, frame: types.FrameType | None) -> list[str]:
    """Words for each stateful thing that is not protected, by the first name that leads to it."""
    known = _known(state)
    found: dict[int, str] = {}
    for name, thing in _named(frame):
        words = _words(thing, state)
        if words and id(thing) not in known and id(thing) not in found:
            found[id(thing)] = f"{name} ({words}) was not handed over"
    for thing in gc.get_objects():
        # type() and not isinstance(): some objects answer the latter by running code of theirs.
        kind = type(thing)
        if issubclass(kind, _ANYWHERE) and id(thing) not in known and id(thing) not in found:
            found[id(thing)] = f"an object of class {kind.__qualname__} was not handed over"
    if not state.feeds:
        found[0] = "no loader was handed over: the data position is not protected"
    return list(found.values())


def _known(state: RankState) -> set[int]:
    things: list[Any] = [*state.catalogue.optimizers, *state.schedulers, *state.extra_things()]
    for feed in state.feeds:
        things += feed.parts()
    things += [module for _name, module in state.catalogue.modules]
    for scheduler in state.schedulers:
        # Nested ones are part of their parent's state.
        things += getattr(scheduler, "_schedulers", [])
    return {id(thing) for thing in things}


def _named(frame: types.FrameType | None) -> Iterator[tuple[str, Any]]:
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_OWN):
            yield from _visible(frame.f_locals)
        frame = frame.f_back
    main = sys.modules.get("__main__")
    yield from _visible(vars(main)) if main is not None else ()


def _visible(names: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, thing) for name, thing in list(names.items()) if not name.startswith("_")]


def _words(thing: Any, state: RankState) -> str:
    """The class of something that has state of its own; "" for anything else."""
    kind = type(thing)
    if issubclass(kind, nn.Module):
        return kind.__qualname__ if _has_foreign_tensors(thing, state) else ""
    stateful = (torch.optim.Optimizer, LRScheduler, DataLoader, torch.amp.GradScaler)
    if issubclass(kind, stateful) or is_generator(thing):
        return kind.__qualname__
    return ""


def _has_foreign_tensors(module: nn.Module, state: RankState) -> bool:
    held = {id(parameter) for parameter in state.catalogue.parameters.values()}
    held |= {id(buffer) for model in state.catalogue.models for buffer in model.buffers()}
    return any(id(tensor) not in held for tensor in [*module.parameters(), *module.buffers()])
