"""Marks forward and backward of protected models, and sees the loss at the root of each backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from .latch import Latch


class SeesLoss(Protocol):
    def saw_backward(self) -> None: ...

    def saw_loss(self, loss: torch.Tensor) -> None: ...


def mark_forward(models: Sequence[nn.Module], latch: Latch, ran: Callable[[bool], None]) -> None:
    """From before the first hook of a model's forward to after its last, errors are latched.

    ``ran`` hears of each forward whether it may belong to training.
    """

    def begins(module: nn.Module, _inputs: Any) -> None:
        latch.enter()
        ran(module.training or _may_train(models))

    for model in models:
        model.register_forward_pre_hook(begins, prepend=True)
        model.register_forward_hook(
            lambda _module, _inputs, _output: latch.leave(), always_call=True
        )


def _may_train(models: Sequence[nn.Module]) -> bool:
    """Eval mode alone tells nothing: one model of several is in it, or a script never calls ``train``."""
    return torch.is_grad_enabled() and (
        any(parameter.requires_grad for model in models for parameter in model.parameters())
        or any(module.training for model in models for module in model.modules())
    )


class _Backward:
    """Stands in for torch.autograd.backward, which Tensor.backward calls by name."""

    def __init__(self) -> None:
        self.original: Any = None
        self.latch: Latch | None = None
        self.seer: SeesLoss | None = None
        self.ran: Callable[[bool], None] | None = None

    def __call__(self, tensors: Any, *arguments: Any, **keywords: Any) -> None:
        root = tensors if isinstance(tensors, torch.Tensor) else None
        if root is not None and self.seer is not None:
            self.seer.saw_loss(root)
        # Reentrant checkpointing calls backward from within one: that is no further pass.
        if self.seer is not None and torch._C._current_graph_task_id() == -1:
            self.seer.saw_backward()
        if self.ran is not None:
            self.ran(True)
        if self.latch is None:
            self.original(tensors, *arguments, **keywords)
            return
        self.latch.enter()
        try:
            self.original(tensors, *arguments, **keywords)
        finally:
            self.latch.leave()


_backward = _Backward()


def mark_backward(
    latch: Latch | None, seer: SeesLoss, ran: Callable[[bool], None] | None = None
) -> None:
    """From now on backward is inside, and its root's value goes to ``seer``; ``ran`` hears of training."""
    if _backward.original is None:
        _backward.original = torch.autograd.backward
        torch.autograd.backward = _backward
    _backward.latch, _backward.seer, _backward.ran = latch, seer, ran
