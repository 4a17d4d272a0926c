"""The part of the frame that the apps may import."""

from __future__ import annotations

from django.apps import AppConfig


class CoreConfig(AppConfig):
    name = "yoco_platform.core"
    label = "core"
    verbose_name = "Platform"

    def ready(self) -> None:
        from . import checks, schema  # noqa: F401  (both register themselves)
