"""Optimizers that are given a closure: run before the guarded step where torch runs it once and first."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .errors import EngineError
from .refusals import Unprotectable


class ClosureUnknown(EngineError):
    """A closure was given to a step that is not known to call it once and first."""

    code = "closure_unknown"


@dataclass(frozen=True)
class Closed:
    """What a closure that was run returned."""

    loss: Any


def refuse_closures(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise Unprotectable for an optimizer that needs its closure.

    It runs forward and backward, and with them collectives, while it writes weights. Whoever is left with
    half of that can neither finish nor undo it.
    """
    for index, optimizer in enumerate(optimizers):
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise Unprotectable(
                "optimizer_needs_closure",
                f"optimizer {index} ({type(optimizer).__qualname__}) computes losses inside its step, "
                "between writes of the weights: such a step cannot be undone or finished after a failure",
            )


def run_closure(
    optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Closed | None, tuple[Any, ...], dict[str, Any]]:
    """Run the closure of one call of ``step``, if it has one; the call's arguments without it."""
    closure = arguments[0] if arguments else keywords.get("closure")
    if closure is None:
        return None, arguments, keywords
    if not calls_it_once(optimizer):
        raise ClosureUnknown(
            f"{type(optimizer).__qualname__} was given a closure, and its step is not one of torch's: how "
            "often it computes the loss and what it writes in between cannot be known"
        )
    with torch.enable_grad():
        loss = closure()
    rest = {key: value for key, value in keywords.items() if key != "closure"}
    return Closed(loss), arguments[1:], rest


def calls_it_once(optimizer: torch.optim.Optimizer) -> bool:
    """torch's own optimizers call it once, before they read a gradient. LBFGS is refused before."""
    step = inspect.unwrap(type(optimizer).step)
    return step.__module__.startswith("torch.optim.") and not isinstance(
        optimizer, torch.optim.LBFGS
    )
