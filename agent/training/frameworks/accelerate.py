"""Hugging Face Accelerate: ``protect`` what ``accelerator.prepare`` gave back, then loop as ever."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import synchronize_rng_states
from torch import nn

from ..loaders import samplers_of
from ..run import Run
from .remaining import NotSupported

_SUPPORTED = ("MULTI_CPU", "NO")


class Place:
    """This process's number in Accelerate's own books; a standby takes another one when it is adopted."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, _state: dict[str, int]) -> None:
        for shared in (PartialState._shared_state, AcceleratorState._shared_state):
            if "process_index" in shared:
                shared["process_index"] = self._run.rank


def protect(
    run: Run,
    accelerator: Accelerator,
    *,
    model: nn.Module,
    optimizer: Any,
    loader: Any = None,
    scheduler: Any = None,
    **extras: Any,
) -> None:
    """``run.protect`` for prepared objects. Draw batches from ``run.batches()``, not from the loader.

    Raises NotSupported, naming the setting, for what could not be carried; Unprotectable as ``run.protect``.
    """
    check(run, accelerator)
    run.protect(
        model=model,
        optimizer=[bare_optimizer(item) for item in _listed(optimizer)],
        scheduler=[getattr(item, "scheduler", item) for item in _listed(scheduler)],
        loader=None if loader is None else bare_loader(loader),
        accelerate=Place(run),
        **extras,
    )


def check(run: Run, accelerator: Accelerator) -> None:
    """Raises NotSupported where this accelerator does not fit a protected run."""
    kind = accelerator.distributed_type.value
    if kind not in _SUPPORTED:
        raise NotSupported(
            f"Accelerate's {kind} is not supported: make Accelerator(cpu=True) after yoco.join()"
        )
    if accelerator.num_processes != run.world_size:
        raise NotSupported(
            f"this Accelerator knows {accelerator.num_processes} processes and the job has "
            f"{run.world_size}: call yoco.join() first, and set LOCAL_RANK where no agent or torchrun does"
        )
    if accelerator.scaler is not None:
        raise NotSupported("mixed precision with a gradient scaler (fp16) is not supported")
    if accelerator.gradient_accumulation_steps != 1:
        raise NotSupported(
            "gradient_accumulation_steps is not supported: accumulate by run.micro_step and "
            "accelerator.no_sync(model)"
        )


def bare_optimizer(optimizer: Any) -> Any:
    """The optimizer inside an AcceleratedOptimizer."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if getattr(optimizer, "scaler", None) is not None:
        raise NotSupported("mixed precision with a gradient scaler (fp16) is not supported")
    return inner


def bare_loader(loader: Any) -> Any:
    """The loader inside a prepared one, which would read a batch ahead of the fence.

    All ranks draw their order from one generator: it is made alike here, once, and moves alike from then on.
    """
    if type(loader) is not DataLoaderShard:
        if hasattr(loader, "base_dataloader"):
            raise NotSupported(
                f"{type(loader).__name__} is not supported: set dispatch_batches=False"
            )
        return loader
    inner = loader.base_dataloader
    generator = loader.synchronized_generator
    if generator is not None and any(
        getattr(item, "generator", None) is generator for item in samplers_of(inner)
    ):
        synchronize_rng_states(["generator"], generator)
    return inner


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
