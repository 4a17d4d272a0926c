from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodes import selectors
from yoco_platform.core.models import Cluster

from .machines import make_cluster


@pytest.fixture(autouse=True)
def nothing_is_remembered_from_another_test() -> Iterator[None]:
    selectors.forget_remembered()
    yield
    selectors.forget_remembered()


@pytest.fixture
def cluster(db: None) -> Cluster:
    return make_cluster()
