"""A standby that takes a rank's state goes on with the same bits: every optimizer, schedule, module kind.

The negative controls at the end leave one thing out each: the comparison must see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from agent.training.encoding import decode, encode
from agent.training.refusals import RestoreFailed, Unprotectable
from agent.training.state import RankState

from .rig import Net, Run, Tied, arena_bytes, build, restore, snapshot

BEFORE, AFTER, WARM_UP = 4, 4, 2


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def adamw(parameters: list[nn.Parameter]) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-2)


def goes_on_alike(make: Callable[[int], Run]) -> Run:
    """Unbroken and taken-over run agree at the take-over and after it, to the bit."""
    unbroken = make(0)
    unbroken.steps(BEFORE)
    saved = snapshot(unbroken)
    losses, end = unbroken.steps(AFTER), unbroken.state.digest()
    standby = make(1)
    standby.steps(WARM_UP)
    assert standby.state.digest()[0] != saved.digest
    restore(standby, saved)
    assert standby.state.digest()[0] == saved.digest
    assert standby.steps(AFTER) == losses
    assert standby.state.digest() == end
    assert standby.hashes[WARM_UP:] == unbroken.hashes[BEFORE:]
    return standby


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": adamw,
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "Adam with a tensor as learning rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2)),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "SGD without state": lambda p: torch.optim.SGD(p, lr=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop centered": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "Rprop": torch.optim.Rprop,
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "two groups": lambda p: torch.optim.AdamW([{"params": p[:2], "lr": 0.1}, {"params": p[2:]}]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_alike(name: str) -> None:
    goes_on_alike(lambda seed: build(seed, OPTIMIZERS[name]))


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiStepLR with its Counter": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5], gamma=0.5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(o, 10)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.StepLR(o, 2)]
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=40),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=1e9),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_goes_on_alike(name: str) -> None:
    goes_on_alike(lambda seed: build(seed, adamw, SCHEDULES[name]))


def test_a_schedule_over_a_tensor_learning_rate_goes_on_alike() -> None:
    tensor_lr = OPTIMIZERS["Adam with a tensor as learning rate"]
    standby = goes_on_alike(
        lambda seed: build(seed, tensor_lr, lambda o: lr_scheduler.ExponentialLR(o, 0.9))
    )
    assert isinstance(standby.optimizer.param_groups[0]["lr"], torch.Tensor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_go_on_alike(dtype: torch.dtype) -> None:
    standby = goes_on_alike(lambda seed: build(seed, adamw, make_model=lambda: Net(dtype)))
    moments = [h.tensor for h in standby.state.catalogue.held if h.name.endswith("exp_avg")]
    assert {m.dtype for m in moments} == {dtype}


def test_tied_weights_stay_one_storage_and_are_moved_once() -> None:
    standby = goes_on_alike(lambda seed: build(seed, adamw, make_model=Tied))
    model = standby.model
    assert model.first.weight is model.last.weight  # type: ignore[union-attr]
    assert [name for name in arena_bytes(standby.state) if name.startswith("m0.")] == [
        "m0.first.weight"
    ]


def test_views_of_one_storage_follow_it_into_shared_memory() -> None:
    run = build(0, adamw)
    run.steps(1)
    view = run.model.middle.weight.detach()[3]  # type: ignore[index,union-attr]
    before = view.clone()
    run.state.rehome()
    assert torch.equal(view, before)
    with torch.no_grad():
        run.model.middle.weight[3].zero_()  # type: ignore[index,union-attr]
    assert view.abs().sum().item() == 0


class Scaler:
    """Like a gradient scaler: grows its factor after some good steps."""

    def __init__(self) -> None:
        self.scale, self.good = 2.0**10, 0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.good = state["scale"], state["good"]

    def update(self) -> None:
        self.good += 1
        self.scale *= 2 if self.good % 3 == 0 else 1


def named_things(run: Run) -> dict[str, Any]:
    average = torch.optim.swa_utils.AveragedModel(run.model)
    return {
        "scaler": Scaler(),
        "average": average,
        "history": [],
        "noise": np.random.default_rng(5),
        "torch noise": torch.Generator().manual_seed(3),
    }


def use_named_things(run: Run, loss: float) -> None:
    extras = run.extras
    extras["scaler"].update()
    extras["average"].update_parameters(run.model)
    extras["history"].append(loss + extras["noise"].normal())
    noise = torch.randn(1, generator=extras["torch noise"])
    with torch.no_grad():
        run.model.last.bias.add_(noise.to(run.model.last.bias.dtype))  # type: ignore[union-attr]


def test_scalers_averages_histories_and_generators_that_are_named_go_on_alike() -> None:
    standby = goes_on_alike(
        lambda seed: build(seed, adamw, extras=named_things, after=use_named_things)
    )
    assert len(standby.extras["history"]) == BEFORE + AFTER
    assert standby.extras["scaler"].good == BEFORE + AFTER
    assert standby.extras["average"].n_averaged.item() == BEFORE + AFTER


def test_optimizer_state_that_the_standby_never_made_is_refused_in_words() -> None:
    unbroken, standby = build(0, adamw), build(1, adamw)
    unbroken.steps(BEFORE)
    small = unbroken.state.capture_small()
    with pytest.raises(RestoreFailed, match="exists in the saved state and not here") as refusal:
        standby.state.restore_small(small)
    assert refusal.value.code == "optimizer_state_missing"


def test_state_that_the_source_does_not_have_yet_is_taken_away_again() -> None:
    unbroken, standby = build(0, adamw), build(1, adamw)
    small, fence = unbroken.state.capture_small(), unbroken.state.capture_fence()
    weights = {name: p.detach().clone() for name, p in unbroken.model.named_parameters()}
    expected = unbroken.steps(AFTER)
    standby.steps(WARM_UP)
    with torch.no_grad():
        for name, parameter in standby.model.named_parameters():
            parameter.copy_(weights[name])
    standby.state.restore_small(small)
    standby.state.restore_fence(fence)
    assert not standby.optimizer.state
    assert standby.steps(AFTER) == expected


# --- the torn step ----------------------------------------------------------------------------------


def test_discarding_a_torn_step_and_computing_it_again_gives_the_same_bits() -> None:
    unbroken, torn = build(0, adamw), build(0, adamw)
    unbroken.steps(BEFORE)
    saved = snapshot(unbroken)
    expected, end = unbroken.steps(AFTER), unbroken.state.digest()
    restore_into = torn
    restore_into.steps(WARM_UP)
    restore(torn, saved)
    fence = torn.state.capture_fence()
    torn.backward()
    torn.state.discard(fence)
    assert all(p.grad is None for p in torn.model.parameters())
    assert torn.state.digest()[0] == saved.digest
    assert torn.steps(AFTER) == expected
    assert torn.state.digest() == end


def test_prepared_gradients_finish_the_step_elsewhere() -> None:
    unbroken = build(0, adamw)
    unbroken.steps(BEFORE)
    saved = snapshot(unbroken)
    unbroken.backward()
    unbroken.optimizer.param_groups[0]["lr"] = 0.5
    prepared = unbroken.state.capture_prepared(gradients=True)
    unbroken.optimizer.step()
    unbroken.optimizer.zero_grad()
    end, losses = unbroken.state.digest(), unbroken.steps(2)
    standby = build(1, adamw)
    standby.steps(WARM_UP)
    restore(standby, saved)
    standby.backward()
    standby.state.restore_prepared(prepared)
    standby.optimizer.step()
    standby.optimizer.zero_grad()
    assert standby.state.digest() == end
    assert standby.steps(2) == losses


# --- negative controls ------------------------------------------------------------------------------


def left_out(change: Callable[[Run, dict[str, Any]], None]) -> tuple[bool, bool]:
    """(digests agree at the take-over, losses agree after it) with ``change`` made to the fence."""
    unbroken = build(0, adamw, lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5**step))
    unbroken.steps(BEFORE)
    saved = snapshot(unbroken)
    losses = unbroken.steps(AFTER)
    standby = build(1, adamw, lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5**step))
    standby.steps(WARM_UP)
    own = decode(standby.state.capture_fence())
    restore(standby, saved)
    changed = decode(saved.fence)
    change(standby, changed)
    for part, value in own.items():
        if changed[part] is None:
            changed[part] = value
    standby.state.restore_fence(encode(changed))
    agree = standby.state.digest()[0] == saved.digest
    return agree, standby.steps(AFTER) == losses


def test_the_comparison_passes_with_all_of_it() -> None:
    assert left_out(lambda run, fence: None) == (True, True)


@pytest.mark.parametrize("part", ["generators", "tensors", "schedulers"])
def test_the_comparison_fails_with_a_part_left_out(part: str) -> None:
    assert left_out(lambda run, fence: fence.update({part: None})) == (False, False)


def test_the_comparison_fails_with_one_buffer_left_out() -> None:
    def zero_one(run: Run, fence: dict[str, Any]) -> None:
        at, tensors = 0, fence["tensors"]
        for name, _dtype, _shape, _strides, size in tensors["shapes"]:
            if name == "m0.seen":
                data = bytearray(tensors["data"])
                data[at : at + size] = bytes(size)
                tensors["data"] = bytes(data)
            at += size

    assert left_out(zero_one) == (False, False)


def test_the_comparison_fails_with_the_data_shifted_by_one() -> None:
    def shift(run: Run, fence: dict[str, Any]) -> None:
        fence["loaders"][0]["consumed"] += 1
        fence["loaders"][0]["mark"] = b"another"

    _agree, same_losses = left_out(shift)
    assert not same_losses


def test_the_comparison_fails_with_the_small_tensors_left_out() -> None:
    unbroken = build(0, adamw)
    unbroken.steps(BEFORE)
    saved = snapshot(unbroken)
    losses = unbroken.steps(AFTER)
    standby = build(1, adamw)
    standby.steps(WARM_UP)
    own = standby.state.capture_small()
    restore(standby, saved)
    standby.state.restore_small(own)
    assert standby.state.digest()[0] != saved.digest
    assert standby.steps(AFTER) != losses


# --- what does not fit ------------------------------------------------------------------------------


def test_a_state_of_another_model_is_refused_and_nothing_is_written() -> None:
    unbroken = build(0, adamw)
    unbroken.steps(1)
    saved = snapshot(unbroken)
    other = build(0, adamw, make_model=Tied)
    other.steps(1)
    before = other.state.digest()
    with pytest.raises(RestoreFailed):
        other.state.restore_small(saved.small)
    with pytest.raises(RestoreFailed):
        other.state.restore_fence(saved.fence)
    assert other.state.digest() == before


@pytest.mark.parametrize("blob", [b"", b"N", b"\xff" * 50, encode({"loaders": []})])
def test_a_malformed_blob_is_one_clear_error(blob: bytes) -> None:
    run = build(0, adamw)
    for put in (run.state.restore_small, run.state.restore_fence, run.state.restore_prepared):
        with pytest.raises(RestoreFailed):
            put(blob)


def test_what_cannot_be_carried_is_refused_by_name_before_training() -> None:
    model = nn.Linear(2, 2)

    class Meter:
        def state_dict(self) -> dict[str, Any]:
            return {"f": lambda: 1}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    with pytest.raises(Unprotectable, match=r"extras\['meter'\]\['f'\] is a builtins.function"):
        RankState(models=[model], extras={"meter": Meter()})
    with pytest.raises(Unprotectable, match=r"extras\['count'\] is a builtins.int") as refusal:
        RankState(models=[model], extras={"count": 3})
    assert refusal.value.code == "extra_not_restorable"
