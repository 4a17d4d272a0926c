"""What the sla app does when a bell rings. The clock calls the same pass."""

from __future__ import annotations

from celery import shared_task

from . import services
from .wakeups import ENTRIES


@shared_task(name=ENTRIES)
def entries() -> None:
    services.entries_catch_up()
