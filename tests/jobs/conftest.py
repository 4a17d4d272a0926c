from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobs import agent_apis
from jobs.gathering import Gathering
from jobs.recollection import arrivals
from nodes import selectors

from .world import World


@pytest.fixture(autouse=True)
def nothing_is_remembered_from_another_test() -> Iterator[None]:
    selectors.forget_remembered()
    arrivals.forget()
    yield
    selectors.forget_remembered()
    arrivals.forget()


@pytest.fixture(autouse=True)
def nobody_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """These agents speak one after another; tests of the gathering make their own."""
    monkeypatch.setattr(agent_apis, "_gathering", Gathering(wait_s=0.0))


@pytest.fixture
def world(db: None) -> World:
    """Four nodes of one GPU each, in four failure domains, ready for work.

    One transaction a test: what would run on commit does not.
    """
    return World(num_nodes=4)
