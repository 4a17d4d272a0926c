"""What the jobs app does when a bell rings. The clock calls the same pass."""

from __future__ import annotations

from celery import shared_task

from .reconcile import reconcile_all
from .wakeups import RECONCILE


@shared_task(name=RECONCILE)
def reconcile() -> None:
    reconcile_all()
