"""torch's optimizer database: every optimizer, setting and implementation goes on alike in every dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing._internal.common_optimizers import (
    OptimizerInfo,
    OptimizerInput,
    optim_db,
)

from agent.training.closures import refuse_closures
from agent.training.refusals import Unprotectable
from agent.training.state import RankState

from .rig import arena_bytes, write_arena

DTYPES = (torch.float32,)
NAMES = [info.optim_cls.__name__ for info in optim_db]
IMPLEMENTATIONS = ("foreach", "fused")
INFOS = dict(zip(NAMES, optim_db, strict=True))
CARRIED = [name for name in NAMES if not INFOS[name].step_requires_closure]


class Weights(nn.Module):
    """A matrix that lies in the arena and, where the optimizer takes it, a vector that does not."""

    def __init__(self, dtype: torch.dtype, vector: bool) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(256, 160, dtype=dtype) / 16)
        self.vector = nn.Parameter(torch.randn(160, dtype=dtype)) if vector else None


class Process:
    """Steps ``given.kwargs`` of one optimizer with gradients that only the step's number decides."""

    def __init__(
        self, info: OptimizerInfo, given: OptimizerInput, dtype: torch.dtype, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.info = info
        self.model = Weights(dtype, vector=info.optim_cls.__name__ != "Muon")
        options = {
            k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in given.kwargs.items()
        }
        self.optimizer = info.optim_cls(list(self.model.parameters()), **options)
        self.state = RankState(models=[self.model], optimizers=[self.optimizer])
        self.number = 0

    def _gradients(self) -> None:
        generator = torch.Generator().manual_seed(self.number)
        for parameter in self.model.parameters():
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype) / 8
            sparse = self.info.only_supports_sparse_grads
            parameter.grad = gradient.to_sparse() if sparse else gradient

    def step(self) -> None:
        self.number += 1
        self._gradients()
        self.optimizer.step()

    def steps(self, count: int) -> str:
        for _ in range(count):
            self.step()
        return self.state.digest()[0]


def taken_over(
    info: OptimizerInfo, given: OptimizerInput, dtype: torch.dtype, spoil: Callable[[Process], None]
) -> tuple[str, str]:
    """(digest of the unbroken process, of the one that took it over) two steps after the take-over."""
    unbroken, standby = (Process(info, given, dtype, seed) for seed in (1, 2))
    unbroken.steps(2)
    unbroken.state.rehome()
    arena, small, fence = (
        arena_bytes(unbroken.state), unbroken.state.capture_small(), unbroken.state.capture_fence()
    )  # fmt: skip
    standby.steps(2)
    write_arena(standby.state, arena)
    standby.state.restore_small(small)
    standby.state.restore_fence(fence)
    spoil(standby)
    return unbroken.steps(2), standby.steps(2)


def inputs(info: OptimizerInfo, dtype: torch.dtype) -> list[OptimizerInput]:
    """Settings of the database times default, foreach and fused: all of them in the first dtype, the first
    and the last setting in the others."""
    settings = info.optim_inputs_func(device="cpu", dtype=dtype)
    chosen = settings if dtype is DTYPES[0] else [settings[0], settings[-1]]
    found = []
    for given in chosen:
        found.append(given)
        for implementation in IMPLEMENTATIONS:
            # torch takes a tensor as learning rate in foreach with ``capturable`` only, which is for devices.
            tensor_lr = isinstance(given.kwargs.get("lr"), torch.Tensor)
            if implementation in info.supported_impls and not (
                tensor_lr and implementation == "foreach"
            ):
                kwargs = {**given.kwargs, implementation: True}
                found.append(OptimizerInput(given.params, kwargs, f"{given.desc} {implementation}"))
    return found


def test_the_one_of_fifteen_that_is_not_carried_is_refused_before_training() -> None:
    assert len(NAMES) == len(set(NAMES)) == 15
    assert set(NAMES) - set(CARRIED) == {"LBFGS"}
    weight = nn.Parameter(torch.ones(1))
    with pytest.raises(Unprotectable, match="LBFGS"):
        refuse_closures([torch.optim.LBFGS([weight])])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CARRIED)
def test_every_setting_of_every_optimizer_goes_on_alike(name: str, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    info, tried = INFOS[name], set()
    for given in inputs(info, dtype):
        expected, found = taken_over(info, given, dtype, lambda _standby: None)
        assert found == expected, given
        tried |= given.kwargs.keys() & set(IMPLEMENTATIONS)
    assert tried == set(IMPLEMENTATIONS) & set(info.supported_impls)


@pytest.mark.parametrize("name", CARRIED)
def test_one_flipped_bit_of_an_optimizers_state_is_seen(name: str) -> None:
    """The negative control: the comparison above covers every optimizer's tensors."""
    torch.set_num_threads(1)
    info = INFOS[name]
    given = next(g for g in inputs(info, torch.float32) if has_state(info, g))

    def flip(standby: Process) -> None:
        held = next(h for h in standby.state.catalogue.held if h.role == "optimizer")
        held.tensor.view(-1).view(torch.uint8)[-1] ^= 1

    expected, found = taken_over(info, given, torch.float32, flip)
    assert found != expected


def has_state(info: OptimizerInfo, given: OptimizerInput) -> bool:
    process = Process(info, given, torch.float32, 0)
    process.steps(2)
    process.state.schema_hash()
    return any(held.role == "optimizer" for held in process.state.catalogue.held)
