"""While other weights stand in a model everything of it may be written; afterwards all of its own is back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from agent.training.borrowing import borrowed_weights
from agent.training.encoding_arrays import bytes_view
from agent.training.state import RankState
from agent.training.step import Counters, Stepper
from agent.training.trail import Trail

WIDTH = 160  # a weight of 102 400 bytes lies in the arena, everything else is small
Write = Callable[[nn.Module], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("table", torch.randn(WIDTH, WIDTH))
        self.register_buffer("missing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.frozen(self.trained(x)) @ self.table)
        return found


def everything_of(model: nn.Module) -> dict[str, Any]:
    """Name -> (object, address, bits) of all that is registered."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            bits = None if tensor is None else bytes_view(tensor).tobytes()
            found[f"{path}.{key}"] = (id(tensor), tensor is not None and tensor.data_ptr(), bits)
    return found


def forward_in_train_mode(model: nn.Module) -> None:
    model.train()
    model(torch.randn(4, WIDTH))


def average_of_the_whole_state_dict(model: nn.Module) -> None:
    model.load_state_dict({name: torch.ones_like(t) for name, t in model.state_dict().items()})


def data_of_another_tensor(model: nn.Module) -> None:
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = AVERAGE if tensor.dim() == 2 else torch.ones_like(tensor)


def other_objects(model: nn.Module) -> None:
    model.load_state_dict(
        {name: torch.ones_like(t) for name, t in model.state_dict().items()}, assign=True
    )
    model.missing = torch.ones(1)
    model.norm.num_batches_tracked = None


AVERAGE = torch.full((WIDTH, WIDTH), 0.5)


@pytest.mark.parametrize(
    "write",
    [
        forward_in_train_mode, average_of_the_whole_state_dict, data_of_another_tensor,
        other_objects,
    ],
)  # fmt: skip
@pytest.mark.parametrize("raises", [False, True])
def test_all_of_a_models_own_is_back_where_it_was(write: Write, raises: bool) -> None:
    model = Net()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    stepper = Stepper(None, RankState(models=[model], optimizers=[optimizer]), Trail(), Counters())
    stepper.open = True
    before = everything_of(model)
    try:
        with torch.no_grad(), borrowed_weights(stepper):
            write(model)
            written = everything_of(model)
            if raises:
                raise KeyError
    except KeyError:
        pass
    assert written != before
    assert everything_of(model) == before
    assert bool((AVERAGE == 0.5).all())
    stepper.state.look_outside()
    assert stepper.state.written_outside == set()
