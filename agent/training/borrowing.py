"""Other weights in place of the model's for a while: averaged ones, for evaluation. The own ones return.

Whoever dies meanwhile leaves the borrowed ones in its arena: until they are given back it counts as torn,
like one that died inside its optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .catalogue import Catalogue
from .errors import NotReady
from .packs import Pack
from .shards import ShardsInPlace
from .step import Stepper


class _Own:
    """Everything that the models hold, as it is now: parameters, frozen ones, buffers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue, self._shards = catalogue, ShardsInPlace(catalogue.models)
        self._held = [held for held in catalogue.held if held.role != "optimizer"]
        self._memory = [held.tensor.detach() for held in self._held]
        self._pack = Pack(self._held)
        self._saved = self._pack.capture()

    def put_back(self) -> None:
        """The same objects, in the same memory, with the same bits."""
        self._catalogue.put_back_objects()
        self._shards.put_back()
        for held, memory in zip(self._held, self._memory, strict=True):
            if held.tensor.data_ptr() != memory.data_ptr():
                held.tensor.data = memory  # ``.data`` was turned to a tensor of the script's
        self._pack.restore(self._saved)


@contextmanager
def borrowed_weights(stepper: Stepper) -> Iterator[None]:
    """See ``Run.borrowed_weights``."""
    if not stepper.open:
        raise NotReady(
            "weights can be borrowed between optimizer.step() and the end of the batch only: before the step "
            "nothing but them tells where the job stands"
        )
    step, models = stepper.counters.step, stepper.state.catalogue.models
    own = _Own(stepper.state.followed())  # first: where it fails nothing is borrowed
    stepper.borrow(step)
    try:
        _reshard(models)
        yield
    finally:
        _reshard(models)
        own.put_back()
        stepper.give_back(step)


def _reshard(models: list[nn.Module]) -> None:
    """What FSDP2 gathered of the one weights must not be used with the others."""
    for model in models:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
