"""Fixtures of the whole test tree. Domain factories live beside the tests of their app."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from xdist.scheduler import LoadFileScheduling

from tests import emptying
from tests.proven import (  # noqa: F401 - hooks of pytest
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_sessionfinish,
)


def pytest_unconfigure() -> None:
    """Remove the data folder that tests/settings.py made for this run."""
    if os.environ.pop("YOCO_TEST_DATA_DIR_IS_OURS", None) == str(os.getpid()):
        shutil.rmtree(os.environ.pop("YOCO_TEST_DATA_DIR"), ignore_errors=True)


WHOLE_PLATFORMS = "tests/e2e/"


class FilesSideBySide(LoadFileScheduling):  # type: ignore[misc]
    """A file stays in one process of ``pytest -n``; whoever starts whole platforms waits for its turn."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(WHOLE_PLATFORMS):
            return WHOLE_PLATFORMS
        scope: str = super()._split_scope(nodeid)
        return scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesSideBySide | None:
    return FilesSideBySide(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest first, so that no process sits idle while the other finishes it.
    items.sort(key=lambda item: not item.nodeid.startswith(WHOLE_PLATFORMS))
    for item in items:
        if item.get_closest_marker("postgres") and settings.SQLITE:
            item.add_marker(pytest.mark.skip(reason="needs PostgreSQL; this run is on SQLite"))
        if item.get_closest_marker("redis") and settings.EMBEDDED:
            item.add_marker(pytest.mark.skip(reason="needs Redis; this run is embedded"))


@pytest.fixture(scope="session", autouse=True)
def tables_are_emptied_quickly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        emptying.patch(monkeypatch)
        yield


@pytest.fixture(scope="session", autouse=True)
def redis_is_left_as_it_was() -> Iterator[None]:
    yield
    if settings.EMBEDDED:
        return
    import redis

    client = redis.Redis.from_url(settings.REDIS_URL)
    for key in client.scan_iter(f"{settings.REDIS_PREFIX}*"):
        client.delete(key)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """End sessions that threads of tests left open, or PostgreSQL refuses to drop the database."""
    yield
    if settings.SQLITE:
        return
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.fixture
def commits(django_capture_on_commit_callbacks: Any) -> Any:
    """``with commits(execute=True):`` runs on-commit callbacks inside a plain ``db`` test."""
    return django_capture_on_commit_callbacks
