"""Times that a job gave its places up."""

from __future__ import annotations

from django.db import models

from ..states import ParkingState
from .core import Job

_PARKING_OPEN = ~models.Q(state__in=["resumed", "withdrawn", "failed"])


class Parking(models.Model):
    """One time that a job gives its places up for another. ``ranks``: what was written, and where."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="parkings")
    for_job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="claims")
    num_slots = models.PositiveIntegerField(help_text="places that ``for_job`` lacks")
    attempt = models.PositiveIntegerField()
    generation = models.PositiveIntegerField(help_text="the one that was parked")
    state = models.CharField(max_length=12, choices=ParkingState.choices)
    state_since = models.DateTimeField()
    reasons = models.JSONField(default=list, help_text="why this job, in words")
    words = models.TextField(default="", blank=True, help_text="what it waits for, or how it ended")
    step = models.BigIntegerField(null=True)
    ranks = models.JSONField(default=dict)
    wanted_at = models.DateTimeField()
    parked_at = models.DateTimeField(null=True)
    resumed_at = models.DateTimeField(null=True)
    tried_at = models.DateTimeField(null=True, help_text="it last tried to come back, in vain")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job"], condition=_PARKING_OPEN, name="one_parking")
        ]
        ordering = ["-id"]
