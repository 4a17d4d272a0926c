"""Other weights in place of the model's for a while: averaged ones, for evaluation. The own ones return.

Whoever dies meanwhile leaves the borrowed ones in its arena: until they are given back it counts as torn,
like one that died inside its optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .encoding_arrays import bytes_view
from .errors import NotReady
from .packs import put_bytes
from .step import Stepper


@contextmanager
def borrowed_weights(stepper: Stepper, models: Sequence[nn.Module]) -> Iterator[None]:
    """See ``Run.borrowed_weights``."""
    if not stepper.open:
        raise NotReady(
            "weights can be borrowed between optimizer.step() and the end of the batch only: before the step "
            "nothing but them tells where the job stands"
        )
    state, step = stepper.state, stepper.counters.step
    state.look_outside()
    kept = [
        (held.tensor, bytes_view(held.tensor).tobytes())
        for held in state.catalogue.held
        if held.role == "parameter"
    ]
    stepper.end_shadow()
    stepper.borrow(step)
    _reshard(models)
    try:
        yield
    finally:
        _reshard(models)
        for tensor, data in kept:
            put_bytes(tensor, data)
        state.note_written()
        stepper.give_back(step)


def _reshard(models: Sequence[nn.Module]) -> None:
    """What FSDP2 gathered of the one weights must not be used with the others."""
    for model in models:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
