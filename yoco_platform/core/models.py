"""Tables of the frame: who there is, what they may present, and what has been said and done."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import AbstractUser
from django.db import models

from .roles import Role


class Customer(models.Model):
    """Whose jobs, incidents, contracts and tokens these are."""

    slug = models.SlugField(max_length=60, unique=True)
    name = models.CharField(max_length=200)
    is_demo = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name


class Cluster(models.Model):
    """A site under one scheduler, in any cloud."""

    slug = models.SlugField(max_length=60, unique=True)
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name


class User(AbstractUser):
    """A person with one role. Customer roles are bound to a customer."""

    role = models.CharField(max_length=20, choices=Role.choices, default=Role.VIEWER)
    customer = models.ForeignKey(Customer, null=True, blank=True, on_delete=models.PROTECT)
    cluster = models.ForeignKey(Cluster, null=True, blank=True, on_delete=models.PROTECT)

    class Meta(AbstractUser.Meta):
        swappable = "AUTH_USER_MODEL"
        constraints = [
            models.CheckConstraint(
                name="customer_role_has_customer",
                condition=~models.Q(role__in=[Role.CUSTOMER_VIEWER, Role.CUSTOMER_CONTESTER])
                | models.Q(customer__isnull=False),
            ),
            models.CheckConstraint(
                name="person_holds_no_token_role",
                condition=~models.Q(role__in=[Role.AGENT, Role.SCHEDULER]),
            ),
        ]


class ApiToken(models.Model):
    """A machine's token for the REST API. Only the hash of it is kept."""

    name = models.CharField(max_length=120)
    role = models.CharField(max_length=20, choices=Role.choices)
    token_hash = models.CharField(max_length=64, unique=True)
    customer = models.ForeignKey(Customer, null=True, blank=True, on_delete=models.PROTECT)
    cluster = models.ForeignKey(Cluster, null=True, blank=True, on_delete=models.PROTECT)
    created_by = models.CharField(max_length=150, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name", "id"]

    def __str__(self) -> str:
        return self.name


class OutboxNotice(models.Model):
    """What changed, written in the transaction that changed it. ``id`` is the sequence."""

    topic = models.CharField(max_length=80)
    kind = models.CharField(max_length=40)
    data = models.JSONField(default=dict)
    at = models.DateTimeField()
    fanned_out_at = models.DateTimeField(
        null=True, help_text="webhook deliveries were made of it; null: not yet"
    )

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["topic", "id"], name="notice_by_topic"),
            models.Index(
                fields=["id"],
                name="notice_to_fan_out",
                condition=models.Q(fanned_out_at__isnull=True),
            ),
            models.Index(fields=["at"], name="notice_by_time"),
        ]


class IdempotencyKey(models.Model):
    """The answer that was given to a POST with this key; given again when it is repeated.

    ``actor`` is the caller's ``Viewer.key``, as names of tokens are not unique.
    """

    actor = models.CharField(max_length=200)
    key = models.CharField(max_length=200)
    request_hash = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["actor", "key"], name="idempotency_key_once")
        ]


class AuditEntry(models.Model):
    """Who did what to what. Inserted, never edited: triggers refuse it; each row hashes the last."""

    at = models.DateTimeField()
    actor = models.CharField(max_length=150)
    role = models.CharField(max_length=20)
    customer = models.ForeignKey(Customer, null=True, on_delete=models.PROTECT, related_name="+")
    cluster = models.ForeignKey(Cluster, null=True, on_delete=models.PROTECT, related_name="+")
    action = models.CharField(max_length=80)
    subject = models.CharField(max_length=200)
    detail = models.JSONField(default=dict)
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64, unique=True)

    class Meta:
        ordering = ["id"]


class WebhookEndpoint(models.Model):
    """Where a customer's or a cluster's notices are posted. ``secret`` signs them."""

    name = models.CharField(max_length=120)
    url = models.URLField(max_length=500)
    secret = models.CharField(max_length=120)
    customer = models.ForeignKey(Customer, null=True, blank=True, on_delete=models.PROTECT)
    cluster = models.ForeignKey(Cluster, null=True, blank=True, on_delete=models.PROTECT)
    kinds = models.JSONField(default=list, help_text="notice kinds to send; empty: all")
    topics = models.JSONField(default=list, help_text="topic prefixes such as job:, empty: all")
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.name


class WebhookDelivery(models.Model):
    """One notice for one endpoint, tried until it is taken or given up."""

    class State(models.TextChoices):
        WAITING = "waiting"
        DELIVERED = "delivered"
        GIVEN_UP = "given_up"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    endpoint = models.ForeignKey(
        WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries"
    )
    notice_id = models.BigIntegerField()
    body = models.TextField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField()
    last_status = models.PositiveSmallIntegerField(null=True)
    last_error = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["created_at"]
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "notice_id"], name="delivery_once")
        ]
        indexes = [models.Index(fields=["state", "next_attempt_at"], name="delivery_due")]
