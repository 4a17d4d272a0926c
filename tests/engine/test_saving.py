"""A checkpoint saved inside the loop: what torch does to an optimizer for it is no step of the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from agent.training.encoding_arrays import bytes_view
from agent.training.errors import NotReady
from agent.training.refusals import RestoreFailed
from agent.training.run import Run

Make = Callable[[nn.Module], torch.optim.Optimizer]


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


class Training:
    """A run without an agent, one batch at a time."""

    def __init__(self, make: Make) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = make(self.model)
        self.run = Run(None, 0, 1)
        self.run.protect(model=self.model, optimizer=self.optimizer)
        self._batches = self.run.batches()
        next(self._batches)

    def step(self) -> tuple[int, str, list[bytes]]:
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        next(self._batches)
        self.written_outside.clear()  # without an agent nobody notes that this was the optimizer
        return self.stands

    def save(self) -> dict[str, Any]:
        with self.run.saving():
            weights, _moments = get_state_dict(self.model, self.optimizer)
            return {"model": weights, "run": self.run.state_dict()}

    @property
    def written_outside(self) -> set[str]:
        assert self.run._stepper is not None
        state = self.run._stepper.state
        state.look_outside()
        return state.written_outside

    @property
    def stands(self) -> tuple[int, str, list[bytes]]:
        """Step, trail and weights."""
        weights = [bytes_view(tensor).tobytes() for tensor in self.model.parameters()]
        return self.run.step, self.run._trail.head, weights


@pytest.mark.parametrize("make", [plain_sgd, adam])
def test_saving_is_no_step(make: Make) -> None:
    unsaved = Training(make)
    expected = [unsaved.step() for _ in range(3)]
    training = Training(make)
    for step in (1, 2, 3):
        assert training.step() == expected[step - 1]
        saved = training.save()
        assert saved["run"]["step"] == training.run.step == step
        assert training.stands == expected[step - 1]
        assert training.written_outside == set()


def test_what_a_script_wrote_before_it_saved_is_still_noticed() -> None:
    training = Training(plain_sgd)
    training.step()
    with torch.no_grad():
        training.model.weight.mul_(2.0)
    training.save()
    assert training.written_outside == {"m0.weight"}


def test_a_step_that_trains_inside_saving_is_refused() -> None:
    training = Training(plain_sgd)
    training.step()
    before = training.stands
    training.model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(NotReady, match="train outside"), training.run.saving():
        training.optimizer.step()
    assert training.stands == before
    training.optimizer.step()
    assert training.run.step == 2


def test_state_that_saving_would_make_is_refused() -> None:
    training = Training(adam)
    with pytest.raises(NotReady, match="once it has stepped"):
        training.save()


def test_before_the_first_batch_a_checkpoints_shape_is_made_by_a_step() -> None:
    model = nn.Linear(4, 1)
    optimizer, run = adam(model), Run(None, 0, 1)
    run.protect(model=model, optimizer=optimizer)
    with run.saving():
        get_state_dict(model, optimizer)
    assert len(optimizer.state) == 2
    assert run.step == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_checkpoint_that_rank_0_alone_saved_is_refused_by_the_others(rank: int) -> None:
    model = nn.Linear(4, 1)
    saving, loading = Run(None, 0, 2), Run(None, rank, 2)
    for run in (saving, loading):
        run.protect(model=model, optimizer=plain_sgd(model))
    next(saving.batches())
    saved = saving.state_dict()
    if rank == 0:
        loading.load_state_dict(saved)
        return
    with pytest.raises(RestoreFailed, match="no state of rank-1, only of rank-0") as refused:
        loading.load_state_dict(saved)
    assert refused.value.code == "rank_missing"
