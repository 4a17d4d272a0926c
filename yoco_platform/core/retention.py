"""What is kept for how long in the frame's own tables."""

from __future__ import annotations

from datetime import timedelta

from . import clock
from .models import IdempotencyKey, OutboxNotice, WebhookDelivery

NOTICES_KEPT = timedelta(days=7)
KEYS_KEPT = timedelta(days=2)
DELIVERIES_KEPT = timedelta(days=30)


def prune() -> int:
    """Delete what is past its time; returns how many rows. The audit log is never among them."""
    now = clock.now()
    deleted = [
        OutboxNotice.objects.filter(
            at__lt=now - NOTICES_KEPT, fanned_out_at__isnull=False
        ).delete(),
        IdempotencyKey.objects.filter(created_at__lt=now - KEYS_KEPT).delete(),
        WebhookDelivery.objects.filter(ended_at__lt=now - DELIVERIES_KEPT).delete(),
    ]
    return sum(count for count, _ in deleted)
