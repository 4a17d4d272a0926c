"""Every random-number generator a rank draws from: one capture, one restore.

Names: ``python``, ``numpy``, ``torch``, ``cuda:<i>`` and, for generator objects the user named,
``user:<name>``. The legacy NumPy state and Python's are packed as words: a tuple of 625 numbers would
cost more to encode than all the rest of a fence.
"""

from __future__ import annotations

import array
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

GENERATOR_TYPES = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)


def is_generator(value: object) -> bool:
    return isinstance(value, GENERATOR_TYPES)


class GeneratorBank:
    """The global generators and those in ``named``. A state is what ``capture`` returns."""

    def __init__(self, named: Mapping[str, Any] | None = None) -> None:
        self._named = dict(named or {})

    def names(self) -> list[str]:
        return list(self.capture())

    def objects(self) -> list[Any]:
        """The generator objects that were named."""
        return list(self._named.values())

    def capture(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "python": _python_state(random._inst),
            "numpy": np.random.get_state(legacy=False),
            "torch": torch.get_rng_state(),
        }
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for index in range(torch.cuda.device_count()):
                state[f"cuda:{index}"] = torch.cuda.get_rng_state(index)
        for name, generator in self._named.items():
            state[f"user:{name}"] = _object_state(generator)
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put every generator back."""
        for name, value in state.items():
            if name == "python":
                _set_python_state(random._inst, value)
            elif name == "numpy":
                np.random.set_state(value)
            elif name == "torch":
                torch.set_rng_state(value)
            elif name.startswith("cuda:"):
                torch.cuda.set_rng_state(value, int(name.removeprefix("cuda:")))
            else:
                _set_object_state(self._named[name.removeprefix("user:")], value)


def _python_state(generator: random.Random) -> dict[str, Any]:
    version, words, gauss = generator.getstate()
    return {"version": version, "words": array.array("I", words).tobytes(), "gauss": gauss}


def _set_python_state(generator: random.Random, state: Mapping[str, Any]) -> None:
    words = array.array("I")
    words.frombytes(state["words"])
    generator.setstate((state["version"], tuple(words), state["gauss"]))


def _object_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    return _python_state(generator)


def _set_object_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = state
    else:
        _set_python_state(generator, state)
