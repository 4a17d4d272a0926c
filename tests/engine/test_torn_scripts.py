"""What scripts leave half done when their step is torn is put back; what cannot be is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from agent.training.closures import ClosureUnknown, refuse_closures, run_closure
from agent.training.extras import Extra
from agent.training.outside import refuse_writing_modules
from agent.training.refusals import RestoreFailed, Unprotectable
from agent.training.state import RankState
from agent.training.step import guard

from .state.rig import Run, build


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


class Interrupted(BaseException):
    pass


class Interrupting:
    """Stands for a vote that breaks in the first step that is asked for."""

    saving = False

    def __init__(self) -> None:
        self.calls = 0

    def carry(self, original: Any, arguments: Any, keywords: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise Interrupted
        return original(*arguments, **keywords)


def scaled(seed: int) -> tuple[Run, torch.amp.GradScaler]:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    return build(seed, adamw, extras=lambda run: {"scaler": scaler}), scaler


def scaled_step(run: Run, scaler: torch.amp.GradScaler, unscale: bool) -> None:
    (x,) = run.state.feeds[0].next()
    scaler.scale((run.model(x) - x).pow(2).mean()).backward()
    if unscale:
        scaler.unscale_(run.optimizer)
    scaler.step(run.optimizer)
    scaler.update()
    run.optimizer.zero_grad()


@pytest.mark.parametrize("unscale", [True, False], ids=["unscaled before", "unscaled in the step"])
def test_a_scaler_whose_step_was_torn_steps_again_as_if_it_had_not(unscale: bool) -> None:
    torch.set_num_threads(1)
    (unbroken, scaler), (torn, other) = scaled(0), scaled(0)
    generators = torch.get_rng_state()
    scaled_step(unbroken, scaler, unscale)
    expected = unbroken.state.digest()
    torch.set_rng_state(generators)
    fence = torn.state.capture_fence()
    guard(Interrupting(), [torn.optimizer])  # type: ignore[arg-type]
    with pytest.raises(Interrupted):
        scaled_step(torn, other, unscale)
    torn.state.discard(fence)
    scaled_step(torn, other, unscale)
    assert torn.state.digest() == expected


def test_what_a_scaler_found_in_the_gradients_is_what_the_step_had_found() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def find(value: float) -> None:
        scaler.scale((weight * value).sum()).backward()
        scaler.unscale_(optimizer)

    find(float("inf"))
    extra = Extra("scaler", scaler)
    saved = extra.capture()
    saved["yoco.found_inf"] = [[t.clone() for t in found] for found in saved["yoco.found_inf"]]
    scaler.update()
    assert scaler.get_scale() == 4.0
    optimizer.zero_grad()
    find(1.0)
    extra.restore(saved)
    scaler.update()
    assert scaler.get_scale() == 4.0  # 8.0, restored, halved again: not left alone


def test_tensors_in_a_named_container_stay_the_objects_the_script_knows() -> None:
    mine = torch.ones(3)
    container = {"weights": [mine], "count": 1}
    extra = Extra("average", container)
    saved = {"weights": [torch.full((3,), 5.0)], "count": 7}
    extra.restore(saved)
    assert container["weights"][0] is mine  # type: ignore[index]
    assert (mine.tolist(), container["count"]) == ([5.0] * 3, 7)


def test_a_closure_is_run_before_the_step_and_its_loss_returned() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=1.0)
    stepper: Any = Interrupting()
    stepper.calls = 1
    guard(stepper, [optimizer])

    def closure() -> torch.Tensor:
        assert stepper.calls == 1
        loss = weight.pow(2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)  # type: ignore[arg-type]
    assert (stepper.calls, float(loss)) == (2, 2.0)  # type: ignore[arg-type]
    assert weight.tolist() != [1.0, 1.0]


def test_an_optimizer_that_needs_its_closure_is_refused_before_training() -> None:
    with pytest.raises(Unprotectable, match="LBFGS") as refusal:
        refuse_closures([torch.optim.LBFGS([nn.Parameter(torch.ones(1))])])
    assert refusal.value.code == "optimizer_needs_closure"


def test_a_closure_for_a_step_that_is_not_torchs_own_is_refused_by_name() -> None:
    class TwoLosses(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            closure()
            return closure()

    with pytest.raises(ClosureUnknown, match="TwoLosses"):
        run_closure(TwoLosses([nn.Parameter(torch.ones(1))], lr=1.0), (lambda: 1.0,), {})


@pytest.mark.parametrize("module", [nn.Embedding, nn.EmbeddingBag])
def test_a_module_that_scales_its_weights_in_forward_is_refused_before_training(
    module: Any,
) -> None:
    with pytest.raises(Unprotectable, match=r"m0\.0 is an Embedding") as refusal:
        refuse_writing_modules([nn.Sequential(module(4, 2, max_norm=1.0))])
    assert refusal.value.code == "module_writes_weights"
    refuse_writing_modules([nn.Sequential(module(4, 2))])


class Late(nn.Module):
    """Two large tensors that are written for the first time after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 16)
        self.register_buffer("table", torch.zeros(200, 200))


def test_a_survivor_whose_buffer_was_first_written_in_the_torn_step_is_not_left_with_it() -> None:
    model = Late()
    state = RankState(models=[model])
    fence = state.capture_fence()
    state.discard(fence)
    model.table.add_(1)  # type: ignore[operator]
    with pytest.raises(RestoreFailed, match=r"m0\.table was written for the first time"):
        state.discard(fence)


def test_an_averaged_model_is_copied_before_it_is_first_updated() -> None:
    model = nn.Linear(200, 200)
    average = torch.optim.swa_utils.AveragedModel(model)
    state = RankState(models=[model, average])
    fence, before = state.capture_fence(), average.module.weight.detach().clone()
    with torch.no_grad():
        average.module.weight.add_(1)
    state.discard(fence)
    assert torch.equal(average.module.weight, before)


@pytest.mark.parametrize("drawn_alone", [1, 3], ids=["too few", "too many"])
def test_a_step_that_ended_in_another_batch_when_run_alone_stands_where_it_had_ended(
    drawn_alone: int,
) -> None:
    """A scaler skipped the first of two batches, or would have: alone, a rank cannot tell."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    unbroken, alone = build(0, adamw), build(0, adamw)
    fence = unbroken.state.capture_fence()
    for _ in range(2):
        unbroken.backward()
    prepared = unbroken.state.capture_prepared(gradients=False)
    expected = unbroken.state.feeds[0].next()[0].tolist()
    alone.state.discard(fence)
    for _ in range(drawn_alone):
        alone.backward()
    alone.state.restore_prepared(prepared)
    assert alone.state.feeds[0].next()[0].tolist() == expected
