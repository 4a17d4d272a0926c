"""Steps inside ``run.saving()``, which are none of the job's.

Before torch.distributed.checkpoint's ``get_state_dict`` reads an optimizer that has neither state nor
gradients, it steps it with gradients and learning rates of 0, so that there is state. Plain SGD never has
any: it is stepped at every save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .errors import NotReady
from .state import RankState


def step_aside(state: RankState, optimizer: torch.optim.Optimizer, call: Callable[[], Any]) -> Any:
    """Carry out a step that changes nothing. Raises NotReady for one that trains or makes state.

    It raises the versions of the weights all the same: what moved before it is noted first.
    """
    if not all("lr" in group and group["lr"] == 0 for group in optimizer.param_groups):
        raise NotReady("optimizer.step() inside run.saving(): train outside of it")
    had_state = bool(optimizer.state)
    state.look_outside()
    result = call()
    if optimizer.state and not had_state:
        raise NotReady(
            f"saving made the state of {type(optimizer).__qualname__}, which the last fence does not hold: "
            "save once it has stepped"
        )
    state.note_written()
    return result
