"""Collects what tests have proven, for the support matrix: rows of tests that passed, and of no others.

``proven`` is called where a run was compared with its unbroken twin, with what really happened in it. The
rows travel with the report of their test, so that they are counted only when the whole test has passed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = "YOCO_PROVEN_FILE"
_PROPERTY = "proven"
_of_this_test: list[dict[str, Any]] = []
_of_this_run: list[dict[str, Any]] = []


def proven(
    *, framework: str, parallelism: str, sources: Iterable[str], ranks: int, through: str
) -> None:
    """A job went on bit for bit. ``through``: engine (agents played by the test) or platform."""
    for source in sorted(set(sources)):
        _of_this_test.append(
            {
                "framework": framework, "parallelism": parallelism, "source": source,
                "ranks": ranks, "through": through, "device": "CPU, gloo",
            }
        )  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.when == "call":
        item.user_properties.extend((_PROPERTY, json.dumps(row)) for row in _of_this_test)
    if call.when != "setup":
        _of_this_test.clear()
    report = yield
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        found = [value for key, value in report.user_properties if key == _PROPERTY]
        _of_this_run.extend({**json.loads(str(row)), "test": report.nodeid} for row in found)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Added to what is there: whoever begins a whole run removes the file; a test may be run again, alone."""
    file = os.environ.get(FILE)
    if file and not hasattr(session.config, "workerinput"):
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*before, *_of_this_run], indent=1))
