"""News of the jobs app: an incident has ended and belongs into a ledger."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from jobs.signals import incident_resolved

from .wakeups import entries_soon


@receiver(incident_resolved)
def incident_has_ended(**_news: Any) -> None:
    entries_soon()
