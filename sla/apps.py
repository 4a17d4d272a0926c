"""The sla app: what was promised, whether it was kept, and the books of it."""

from __future__ import annotations

from django.apps import AppConfig


class SlaConfig(AppConfig):
    name = "sla"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import receivers  # noqa: F401  (connects them)
