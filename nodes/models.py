"""Tables of the machines: nodes, devices, their transitions and what was found on them."""

from __future__ import annotations

from django.db import models

from yoco_platform.core.models import Cluster

from .states import NodeState


class Node(models.Model):
    """A host with an agent, in a rack and a failure domain. ``name`` is unique in its cluster."""

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=120)
    hostname = models.CharField(max_length=255)
    pool = models.CharField(max_length=80)
    rack = models.CharField(max_length=80)
    failure_domain = models.CharField(max_length=80)
    state = models.CharField(max_length=16, choices=NodeState.choices, default=NodeState.JOINING)
    state_since = models.DateTimeField()
    boot_id = models.CharField(max_length=64)
    agent_version = models.CharField(max_length=40)
    runs_as_root = models.BooleanField(default=False)
    endpoint = models.JSONField(help_text="agent.protocol.Endpoint")
    inventory_hash = models.CharField(max_length=64)
    token_hash = models.CharField(max_length=64, unique=True)
    last_heard_at = models.DateTimeField(null=True, help_text="platform clock, any request")
    heartbeat_sequence = models.BigIntegerField(default=0)
    event_sequence = models.BigIntegerField(default=0, help_text="last event stored of boot_id")
    readings = models.JSONField(default=list, help_text="latest agent.protocol.Reading list")
    is_spare = models.BooleanField(default=True, help_text="may be taken by a recovery")
    heartbeat_s = models.FloatField(default=2.0, help_text="the cadence the agent was last told")
    previous_boot_id = models.CharField(
        max_length=64, default="", blank=True, help_text="late heartbeats of it change nothing"
    )
    watch = models.JSONField(default=dict, help_text="nodes.health.Watch: streaks of readings")
    suspect_rule = models.CharField(
        max_length=40,
        default="",
        blank=True,
        help_text="the rule that made it suspect; silence too",
    )
    held_state = models.CharField(
        max_length=16,
        choices=NodeState.choices,
        default="",
        blank=True,
        help_text="where a person wants it kept until a person releases it",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="node_name_once")]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Gpu(models.Model):
    """A device of a node; ``simulated`` ones are CPU slots."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveIntegerField()
    uuid = models.CharField(max_length=80)
    model = models.CharField(max_length=80)
    memory_bytes = models.BigIntegerField()
    simulated = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "index"], name="gpu_index_once")]
        ordering = ["node", "index"]


class NodeTransition(models.Model):
    """One step of a node's state. Inserted, never edited."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="transitions")
    from_state = models.CharField(max_length=16, choices=NodeState.choices)
    to_state = models.CharField(max_length=16, choices=NodeState.choices)
    reason = models.TextField(help_text="a sentence a person can act on")
    actor = models.CharField(max_length=150, help_text="user name, or the rule that acted")
    at = models.DateTimeField()

    class Meta:
        ordering = ["at", "id"]


class EnrollmentToken(models.Model):
    """A one-time token that lets one agent enrol. Only its hash is kept."""

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT)
    token_hash = models.CharField(max_length=64, unique=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    used_by = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL)


class Finding(models.Model):
    """One health observation that means something. A condition clears itself; an event stays true."""

    class Severity(models.TextChoices):
        INFO = "info"
        WARNING = "warning"
        CRITICAL = "critical"

    class Action(models.TextChoices):
        OBSERVE = "observe"
        TELL_USER = "tell_user"
        MIGRATE = "migrate"
        DRAIN = "drain"
        QUARANTINE = "quarantine"
        REPAIR = "repair"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="findings")
    boot_id = models.CharField(max_length=64)
    component = models.CharField(max_length=40)
    entity = models.CharField(max_length=120)
    check_name = models.CharField(max_length=80)
    severity = models.CharField(max_length=10, choices=Severity.choices)
    fatal = models.BooleanField(default=False)
    codes = models.JSONField(default=list)
    evidence = models.JSONField(default=list, help_text="lines of words and numbers")
    action = models.CharField(max_length=12, choices=Action.choices)
    injected = models.BooleanField(default=False, help_text="comes from a drill")
    simulated = models.BooleanField(default=False, help_text="comes from simulated readings")
    dedupe_key = models.CharField(max_length=200)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    cleared_at = models.DateTimeField(null=True)
    overruled_by = models.CharField(
        max_length=150, default="", blank=True, help_text="who released the node in spite of it"
    )
    held_reason = models.TextField(
        default="", blank=True, help_text="why nothing was done about it: mode or breaker, in words"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node", "dedupe_key"],
                condition=models.Q(cleared_at__isnull=True),
                name="finding_open_once",
            )
        ]
        ordering = ["-last_seen_at", "-id"]


class HealthPolicy(models.Model):
    """A version of the health policy (nodes/policies.py). Inserted, never edited; the highest holds."""

    version = models.PositiveIntegerField(unique=True)
    data = models.JSONField(help_text="nodes.policies.Policy")
    note = models.TextField(help_text="why it was changed")
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-version"]


class BreakerTrip(models.Model):
    """A rule wanted more of a pool or rack than it may take. It stays tripped until a person resets it."""

    class Scope(models.TextChoices):
        POOL = "pool"
        RACK = "rack"

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="+")
    rule = models.CharField(max_length=40)
    scope = models.CharField(max_length=8, choices=Scope.choices)
    scope_name = models.CharField(max_length=80)
    node = models.ForeignKey(
        Node, on_delete=models.CASCADE, related_name="+", help_text="the one it was not given"
    )
    reason = models.TextField()
    policy_version = models.PositiveIntegerField()
    tripped_at = models.DateTimeField()
    reset_at = models.DateTimeField(null=True)
    reset_by = models.CharField(max_length=150, default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "rule", "scope", "scope_name"],
                condition=models.Q(reset_at__isnull=True),
                name="breaker_open_once",
            )
        ]
        ordering = ["-tripped_at", "-id"]


class ListeningSpan(models.Model):
    """One row: since when the platform has been listening. Silence is counted from there at the earliest."""

    began_at = models.DateTimeField()
    last_at = models.DateTimeField()
