"""torchft's own test of checkpoint transports, from its wheel, run on ours: equal instead of close.

Its strided case, which is commented out there, is on here, and a second one with elements beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from unittest import TestCase

import pytest
import torch
from torch.distributed.tensor import DTensor
from torchft.checkpointing import transport_test as suite

from .torchft_adapter import YocoTransport

State = dict[str, object]
theirs = suite.make_state_dict
KEYS = {"rank", "str", "int", "dtensor", "strided", "every other", "transposed"}


def make_state_dict(device: torch.device) -> State:
    state: State = theirs(device)
    state["strided"] = torch.tensor([10], device=device)[1::2]
    state["every other"] = torch.arange(9.0, device=device)[1::2]
    state["transposed"] = torch.arange(6.0, device=device).view(2, 3).t()
    return state


def make_other_values(device: torch.device) -> State:
    """The form of the state, as a standby has it, with nothing of what is to come."""
    state = make_state_dict(device)
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            local: Any = value._local_tensor if isinstance(value, DTensor) else value
            local.untyped_storage().fill_(0xAB)
        else:
            state[key] = None
    return state


def assert_equal(_self: TestCase, got: State, sent: State) -> None:
    assert list(got) == list(sent)
    for key, ours in got.items():
        other = sent[key]
        assert type(ours) is type(other), key
        if not isinstance(ours, torch.Tensor) or not isinstance(other, torch.Tensor):
            assert ours == other
            continue
        if isinstance(ours, DTensor) and isinstance(other, DTensor):
            assert ours._spec == other._spec
            ours, other = ours._local_tensor, other._local_tensor
        assert (ours.dtype, ours.shape, ours.stride()) == (other.dtype, other.shape, other.stride())
        assert bytes(ours.untyped_storage()) == bytes(other.untyped_storage()), key


Prepare = Callable[[Callable[[TestCase, State, State], None]], None]


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Put our state and our comparison into torchft's module."""

    def put(compare: Callable[[TestCase, State, State], None]) -> None:
        monkeypatch.setattr(suite, "make_state_dict", make_state_dict)
        monkeypatch.setattr(suite, "assertStateDictEqual", compare)

    return put


def _run(carrier: Literal["tcp", "same_host"], at: Path) -> None:
    device = torch.device("cpu")
    suite.run_multi_recovery_test(
        TestCase(),
        lambda rank, _world: YocoTransport(rank, lambda: make_other_values(device), carrier, at),
        device,
    )


@pytest.mark.parametrize("carrier", ["tcp", "same_host"])
def test_torchfts_multi_recovery_test_passes_with_equality(
    carrier: Literal["tcp", "same_host"], prepare: Prepare, tmp_path: Path
) -> None:
    compared: list[set[str]] = []

    def compare(self: TestCase, got: State, sent: State) -> None:
        assert_equal(self, got, sent)
        compared.append(set(got))

    prepare(compare)
    _run(carrier, tmp_path)
    assert compared == [KEYS] * 3


def test_the_comparison_sees_one_byte(prepare: Prepare, tmp_path: Path) -> None:
    def compare(self: TestCase, got: State, sent: State) -> None:
        every_other = got["every other"]
        assert isinstance(every_other, torch.Tensor)
        every_other.untyped_storage()[0] ^= 1  # an element that the view itself does not show
        assert_equal(self, got, sent)

    prepare(compare)
    try:
        with pytest.raises(AssertionError, match="every other"):
            _run("tcp", tmp_path)
    finally:
        torch.distributed.destroy_process_group()
