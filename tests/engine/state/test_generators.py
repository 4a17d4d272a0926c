"""Every generator goes on where it stood; the fingerprint says what decides the last bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from agent.training import fingerprint as prints
from agent.training.encoding import decode, encode
from agent.training.generators import GeneratorBank

NAMED: dict[str, Any] = {
    "torch": torch.Generator(),
    "numpy": np.random.default_rng(1),
    "philox": np.random.Generator(np.random.Philox(2)),
    "legacy": np.random.RandomState(3),
    "bits": np.random.SFC64(4),
    "python": random.Random(5),
}


def draws() -> list[Any]:
    return [
        random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(2).tolist(),
        torch.rand(2, generator=NAMED["torch"]).tolist(), NAMED["numpy"].normal(),
        NAMED["philox"].random(), NAMED["legacy"].normal(), NAMED["bits"].random_raw(),
        NAMED["python"].gauss(0, 1),
    ]  # fmt: skip


def test_every_generator_goes_on_where_it_stood() -> None:
    bank = GeneratorBank(NAMED)
    draws()
    blob = encode(bank.capture())
    expected = [draws() for _ in range(3)]
    bank.restore(decode(blob))
    assert [draws() for _ in range(3)] == expected


@pytest.mark.parametrize("name", ["python", "numpy", "torch", "user:bits"])
def test_a_generator_left_out_is_seen(name: str) -> None:
    bank = GeneratorBank(NAMED)
    state = bank.capture()
    expected = [draws() for _ in range(2)]
    bank.restore({key: value for key, value in state.items() if key != name})
    assert [draws() for _ in range(2)] != expected


def test_the_fingerprint_is_stable_and_changes_with_the_threads() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one, words = prints.fingerprint(), prints.fingerprint_words()
        assert prints.fingerprint() == one
        torch.set_num_threads(2)
        assert prints.fingerprint() != one
        assert prints.differences(words, prints.fingerprint_words()) == ["threads: 1 here, 2 there"]
    finally:
        torch.set_num_threads(threads)


def test_the_fingerprint_names_what_decides_bits() -> None:
    words = prints.fingerprint_words()
    assert {"torch", "build", "instruction set", "threads", "deterministic"} <= words.keys()
    assert words["instruction set"] == torch.backends.cpu.get_cpu_capability()
