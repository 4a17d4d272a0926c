"""Fixtures of tests that drive the pages in a browser."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.frontend.scene import Scene, make_scene

from .browser import chromium
from .serving import Site, serving

# Playwright's synchronous API runs a loop in this thread; the ORM is used between its calls, never in it.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each module: while it lives, a loop runs in this thread, and no other module's can."""
    with chromium() as one:
        yield one


@pytest.fixture
def scene(transactional_db: None) -> Scene:
    return make_scene()


@pytest.fixture
def site(transactional_db: None) -> Iterator[Site]:
    with serving() as one:
        yield one
