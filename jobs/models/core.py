"""Jobs, workers, incidents, migrations, orders."""

from __future__ import annotations

import uuid

from django.db import models

from nodes.models import Node
from yoco_platform.core.models import Cluster, Customer

from ..states import (
    CauseClass,
    IncidentState,
    JobState,
    MigrationState,
    OrderState,
    ProtectionState,
    Source,
    StageName,
    Verdict,
    WorkerState,
)


class Job(models.Model):
    """One training run of one customer. ``command`` runs on every node: see docs/security.md."""

    customer = models.ForeignKey(Customer, on_delete=models.PROTECT, related_name="jobs")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=120)
    state = models.CharField(max_length=16, choices=JobState.choices, default=JobState.SUBMITTED)
    state_since = models.DateTimeField()
    protection = models.CharField(
        max_length=16, choices=ProtectionState.choices, default=ProtectionState.UNPROTECTED
    )
    protection_reason = models.TextField(default="", blank=True)
    wants_protection = models.BooleanField(default=True)
    world_size = models.PositiveIntegerField()
    standbys = models.PositiveIntegerField(default=1, help_text="warm standbys to keep")
    priority = models.IntegerField(default=0)
    preemptible = models.BooleanField(default=False)
    pool = models.CharField(max_length=80)
    command = models.JSONField(help_text="argv, never a shell string")
    environment = models.JSONField(default=dict)
    working_directory = models.CharField(max_length=500)
    run_as = models.CharField(max_length=64, help_text="operating-system user")
    redundancy = models.CharField(max_length=10, default="auto")
    accumulation = models.CharField(max_length=10, default="redo")
    limits = models.JSONField(default=dict, help_text="agent.protocol.Limits")
    attempt = models.PositiveIntegerField(default=1)
    generation = models.PositiveIntegerField(default=0)
    committed_step = models.BigIntegerField(default=0)
    checkpoint_step = models.BigIntegerField(null=True)
    parallelism = models.CharField(max_length=16, default="", blank=True)
    inventory = models.JSONField(
        null=True, help_text="agent.protocol.StateInventory of rank 0, null before it joined"
    )
    costs = models.JSONField(
        default=dict, help_text="what protection costs a step: agent.protocol.RankCosts of rank 0"
    )
    paces_due = models.BooleanField(
        default=False, help_text="rank 0 has told its own time since ranks were last compared"
    )
    is_demo = models.BooleanField(default=False)
    submitted_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)
    end_reason = models.TextField(default="", blank=True)
    when_full = models.CharField(max_length=8, default="queue", help_text="jobs.states.WhenFull")
    news = models.BigIntegerField(
        default=0, help_text="counts what happened to it: a pass that sees it grow passes again"
    )
    points_rank = models.PositiveIntegerField(null=True, help_text="lowest rank that reported")
    waiting_for = models.TextField(default="", blank=True)  # what a parked job waits for
    slots_missing = models.PositiveIntegerField(default=0)  # by its recovery: lower jobs leave them
    put_aside_until = models.DateTimeField(
        null=True, help_text="a pass over it raised: the others go first"
    )

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["state"], name="job_by_state")]

    def __str__(self) -> str:
        return self.name


class JobTransition(models.Model):
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="transitions")
    from_state = models.CharField(max_length=16, choices=JobState.choices)
    to_state = models.CharField(max_length=16, choices=JobState.choices)
    reason = models.TextField()
    actor = models.CharField(max_length=150)
    at = models.DateTimeField()

    class Meta:
        ordering = ["at", "id"]


class Worker(models.Model):
    """One process of a job on a node: a rank, or a standby (``rank`` null)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="workers")
    attempt = models.PositiveIntegerField()
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    gpu_index = models.PositiveIntegerField(default=0)
    rank = models.PositiveIntegerField(null=True)
    provisional_rank = models.PositiveIntegerField(default=0)
    generation = models.PositiveIntegerField(help_text="the last one it belonged to")
    state = models.CharField(
        max_length=12, choices=WorkerState.choices, default=WorkerState.ORDERED
    )
    state_since = models.DateTimeField()
    blocked_outcome = models.CharField(max_length=10, default="", blank=True)
    position = models.JSONField(null=True, help_text="agent.protocol.Position, last reported")
    custody = models.CharField(max_length=12, default="", blank=True)
    replica_group = models.JSONField(default=list)
    fingerprint = models.CharField(max_length=64, default="", blank=True)
    exit_code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    detail = models.TextField(default="", blank=True)
    exception = models.TextField(
        default="", blank=True, help_text="type and first line of what the script raised"
    )
    standing = models.JSONField(
        null=True, help_text="agent.protocol.Standing, while its agent says that it does not move"
    )
    standing_at = models.DateTimeField(null=True, help_text="its agent said so last")
    rung_at = models.DateTimeField(
        null=True, help_text="its agent's doorbell was rung to judge its silence"
    )
    mark_step = models.BigIntegerField(default=-1, help_text="newest mark of its trail")
    mark_head = models.CharField(max_length=32, default="", blank=True)
    missing_since = models.DateTimeField(
        null=True, help_text="its agent's heartbeats have not listed it since"
    )
    own_ms = models.JSONField(
        default=list,
        help_text="its last reports, newest first: [generation, step, own milliseconds a step]",
    )
    finished_step = models.BigIntegerField(null=True, help_text="its training function returned")
    is_stopping = models.BooleanField(default=False, help_text="a stop order was written for it")
    holds_state = models.BooleanField(
        default=False, help_text="dead or moved away, and its agent has not let its state go"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["node", "state"], name="worker_by_node_state")]


class Generation(models.Model):
    """A membership of a job. ``store_prefix`` carries a random id known only from orders."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="generations")
    attempt = models.PositiveIntegerField()
    number = models.PositiveIntegerField()
    resume_at = models.BigIntegerField(default=0, help_text="last committed step it starts from")
    store_node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    store_prefix = models.CharField(max_length=80)
    store_secret = models.CharField(max_length=80)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "attempt", "number"], name="generation_once")
        ]
        ordering = ["attempt", "number"]


class Placement(models.Model):
    """Where a rank sits in a generation. History: rows are never edited."""

    generation = models.ForeignKey(Generation, on_delete=models.CASCADE, related_name="placements")
    rank = models.PositiveIntegerField()
    worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="placements")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["generation", "rank"], name="one_worker_a_rank")
        ]
        ordering = ["rank"]


class Incident(models.Model):
    """Interruption, or averted interruption, of one job by one root cause. Shown as INC-<id>."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="incidents")
    customer = models.ForeignKey(Customer, on_delete=models.PROTECT, related_name="incidents")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="+")
    attempt = models.PositiveIntegerField()
    generation = models.PositiveIntegerField(help_text="the generation it broke")
    predicted = models.BooleanField(default=False, help_text="moved before it failed")
    state = models.CharField(
        max_length=12, choices=IncidentState.choices, default=IncidentState.OPEN
    )
    state_since = models.DateTimeField()
    verdict = models.CharField(max_length=12, choices=Verdict.choices, default=Verdict.AWAITING)
    verdict_reason = models.TextField(default="", blank=True)
    cause_class = models.CharField(max_length=20, choices=CauseClass.choices, null=True)
    summary = models.TextField(help_text="what happened, in one sentence")
    ranks = models.JSONField(default=list)
    node_names = models.JSONField(default=list)
    step = models.BigIntegerField(help_text="last committed step at onset")
    occurred_at = models.DateTimeField(help_text="the agent's clock")
    observed_at = models.DateTimeField(help_text="the platform heard of it")
    recorded_at = models.DateTimeField(auto_now_add=True)
    resolved_at = models.DateTimeField(null=True)
    protected_again_at = models.DateTimeField(null=True)
    pause_ms = models.FloatField(null=True, help_text="slowest surviving rank, commit to commit")
    lost_steps = models.BigIntegerField(null=True)
    evidence = models.JSONField(
        default=dict, help_text="levels of docs/jobs.md, and what proves them"
    )
    waiting_for = models.TextField(
        default="", blank=True, help_text="what keeps the planner from deciding, in words"
    )
    is_demo = models.BooleanField(default=False)

    class Meta:
        ordering = ["-id"]

    @property
    def number(self) -> str:
        return f"INC-{self.pk}"


class IncidentTransition(models.Model):
    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="transitions")
    from_state = models.CharField(max_length=12, choices=IncidentState.choices)
    to_state = models.CharField(max_length=12, choices=IncidentState.choices)
    reason = models.TextField()
    at = models.DateTimeField()

    class Meta:
        ordering = ["at", "id"]


class Migration(models.Model):
    """Moving one or more ranks: of an incident, or of a maintenance (incident null)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="migrations")
    incident = models.ForeignKey(
        Incident, null=True, on_delete=models.PROTECT, related_name="migrations"
    )
    attempt = models.PositiveIntegerField()
    from_generation = models.PositiveIntegerField()
    to_generation = models.PositiveIntegerField(null=True, help_text="null while pausing")
    state = models.CharField(max_length=12, choices=MigrationState.choices)
    state_since = models.DateTimeField()
    resume_at = models.BigIntegerField(null=True)
    trails = models.JSONField(
        default=dict, help_text="rank -> [step, trail head] that agents knew before the move"
    )
    reason = models.TextField(help_text="why these sources and targets, in words")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]


class Move(models.Model):
    """One rank of a migration: from where to where, by which source, and what proved the copy."""

    migration = models.ForeignKey(Migration, on_delete=models.CASCADE, related_name="moves")
    rank = models.PositiveIntegerField()
    from_worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="+")
    from_node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    to_worker = models.ForeignKey(Worker, on_delete=models.PROTECT, related_name="+")
    to_node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    source = models.CharField(max_length=12, choices=Source.choices)
    finish = models.CharField(max_length=6, default="none")
    passed_over = models.JSONField(default=list, help_text="sources refused and why, in words")
    transfers = models.JSONField(
        default=list, help_text="agent.protocol.Transferred of each stream"
    )
    num_streams = models.PositiveIntegerField(default=1, help_text="streams its target opens")
    target_reason = models.TextField(default="", blank=True)
    source_node_ids = models.JSONField(default=list, help_text="nodes whose agents serve it")
    failed_code = models.CharField(max_length=40, default="", blank=True)
    failed_message = models.TextField(default="", blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["migration", "rank"], name="move_once")]
        ordering = ["rank"]


class Stage(models.Model):
    """detect, decide, reserve, transfer, rejoin, verify of one migration, with times."""

    migration = models.ForeignKey(Migration, on_delete=models.CASCADE, related_name="stages")
    name = models.CharField(max_length=8, choices=StageName.choices)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    detail = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["migration", "name"], name="stage_once")]
        ordering = ["began_at", "id"]


class Order(models.Model):
    """What the platform asks of one agent. ``body`` is agent.protocol.OrderBody as JSON text."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="orders")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="orders")
    migration = models.ForeignKey(
        Migration, null=True, on_delete=models.CASCADE, related_name="orders"
    )
    kind = models.CharField(max_length=12)
    attempt = models.PositiveIntegerField(default=1)
    generation = models.PositiveIntegerField(default=0)
    body = models.TextField()
    state = models.CharField(max_length=8, choices=OrderState.choices, default=OrderState.PENDING)
    code = models.CharField(max_length=40, default="", blank=True)
    message = models.TextField(default="", blank=True)
    created_at = models.DateTimeField()
    deadline_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["node", "state"], name="order_by_node_state")]
        ordering = ["created_at", "id"]
