"""What agents reported, and what is kept of it for charts and comparisons."""

from __future__ import annotations

from django.db import models

from nodes.models import Node

from .core import Job


class AgentEvent(models.Model):
    """What an agent reported, as it did. (node, boot_id, sequence) makes a repeat harmless."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    boot_id = models.CharField(max_length=64)
    sequence = models.BigIntegerField()
    kind = models.CharField(max_length=20)
    job = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="agent_events")
    body = models.JSONField()
    occurred_at = models.DateTimeField(help_text="the agent's clock")
    received_at = models.DateTimeField(help_text="the platform's clock")
    refused_code = models.CharField(max_length=40, default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node", "boot_id", "sequence"], name="agent_event_once")
        ]
        indexes = [models.Index(fields=["job", "kind"], name="agent_event_by_job_kind")]
        ordering = ["received_at", "id"]


class Point(models.Model):
    """A point of the job's charts, of its lowest reporting rank. At most 2,000 a job are kept."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="points")
    attempt = models.PositiveIntegerField()
    generation = models.PositiveIntegerField()
    step = models.BigIntegerField()
    at = models.DateTimeField()
    loss = models.FloatField(null=True)
    step_ms = models.FloatField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "attempt", "generation", "step"], name="point_once"
            )
        ]
        ordering = ["attempt", "step", "generation"]


class StateDigest(models.Model):
    """Digest of a rank's whole state at one fence, to compare with a twin and among replicas."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="state_digests")
    attempt = models.PositiveIntegerField()
    generation = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    step = models.BigIntegerField()
    digest = models.CharField(max_length=64)
    trail_head = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job", "attempt", "generation", "rank", "step"], name="state_digest_once"
            )
        ]
        ordering = ["step", "rank"]
