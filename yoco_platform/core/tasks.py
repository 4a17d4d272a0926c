"""Background work of the frame."""

from __future__ import annotations

from celery import shared_task

from .retention import prune
from .webhooks import webhooks_send


@shared_task(name="core.webhooks_send")
def send() -> None:
    webhooks_send()


@shared_task(name="core.prune")
def prune_tables() -> None:
    prune()
