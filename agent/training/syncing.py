"""Whether gradients and buffers are exchanged by the next forward and backward: flags of DDP and FSDP2.

They move inside an accumulation (``no_sync``, ``set_requires_gradient_sync``) and decide which collectives
are issued: a rank that goes on beside the others needs theirs. DDP's ``require_backward_grad_sync`` is not
among them: the script's own ``with model.no_sync()`` puts it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from .refusals import RestoreFailed
from .shards import fsdp_groups

_FSDP_FLAGS = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")


class SyncFlags:
    """The flags of these models, in module order."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        modules = [module for model in models for module in model.modules()]
        self._places: list[tuple[Any, str]] = [
            (module, "require_forward_param_sync")
            for module in modules
            if isinstance(module, DistributedDataParallel)
        ]
        self._places += [(group, flag) for group in fsdp_groups(models) for flag in _FSDP_FLAGS]
        contexts = {
            id(context): context
            for module in modules
            if isinstance(module, FSDPModule)
            for context in (module._get_fsdp_state()._state_ctx,)
        }
        self._places += [(context, "is_last_backward") for context in contexts.values()]

    def capture(self) -> bytes:
        return bytes(bool(getattr(holder, flag)) for holder, flag in self._places)

    def check(self, saved: bytes) -> None:
        if len(saved) != len(self._places):
            raise RestoreFailed("sync_differs", "the models exchange gradients in another way here")

    def restore(self, saved: bytes) -> None:
        for (holder, flag), value in zip(self._places, saved, strict=True):
            setattr(holder, flag, bool(value))
