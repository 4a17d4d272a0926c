"""Bad configuration is named at the start."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks


def _ids() -> set[str]:
    return {message.id for message in run_checks() if (message.id or "").startswith("yoco.")}


@pytest.fixture
def sound(settings: Any) -> Any:
    settings.SQLITE, settings.EMBEDDED, settings.REDIS_URL = False, False, "redis://h:1/0"
    settings.CLOCK_PASSES = []
    return settings


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"SECRET_KEY": "missing: set YOCO_SECRET_KEY"}, {"yoco.E001"}),
        ({"SECRET_KEY": "short"}, {"yoco.W001"}),
        ({"SQLITE": True}, {"yoco.E002"}),
        ({"EMBEDDED": True}, {"yoco.W002"}),
        ({"PUBLIC_URL": "yoco.example.com"}, {"yoco.E003"}),
        ({"REDIS_URL": "localhost:6379"}, {"yoco.E004"}),
        ({"ALLOWED_HOSTS": ["*"]}, {"yoco.E005"}),
        ({"DEBUG": True}, {"yoco.E006"}),
        ({"LOG_FORMAT": "xml"}, {"yoco.E007"}),
        ({"CLOCK_PASSES": ["nodes.services.nothing"]}, {"yoco.E008"}),
    ],
)
def test_each_mistake_has_its_id(sound: Any, changes: dict[str, Any], expected: set[str]) -> None:
    for name, value in changes.items():
        setattr(sound, name, value)
    assert _ids() == expected
