from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .arenas import MODEL, Arena, Tensor
from .ways import WAYS, Way


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    made = Way(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def tcp(tmp_path: Path) -> Iterator[Way]:
    made = Way("tcp", tmp_path)
    yield made
    made.close()


@pytest.fixture
def same_host(tmp_path: Path) -> Iterator[Way]:
    made = Way("same_host", tmp_path)
    yield made
    made.close()


@pytest.fixture
def arena_of() -> Iterator[Callable[..., Arena]]:
    """Make arenas that are closed after the test."""
    made: list[Arena] = []

    def make(tensors: tuple[Tensor, ...] | list[Tensor] = MODEL, **options: int) -> Arena:
        made.append(Arena(tensors, **options))
        return made[-1]

    yield make
    for arena in made:
        arena.close()


@pytest.fixture
def pair_of(arena_of: Callable[..., Arena]) -> Callable[..., tuple[Arena, Arena]]:
    """A filled arena and an empty one of the same tensors, numbered differently."""

    def make(tensors: tuple[Tensor, ...] | list[Tensor] = MODEL) -> tuple[Arena, Arena]:
        return arena_of(tensors).fill(), arena_of(tensors, numbering=100)

    return make
