"""How rows of the jobs app are shown over REST."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from yoco_platform.core.api import TransitionOutput


class StatePartOutput(serializers.Serializer[Any]):
    """One kind of protected state on a rank, and which rungs of the ladder bring it back."""

    kind = serializers.CharField()
    names = serializers.ListField(child=serializers.CharField())
    count = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    sources = serializers.ListField(child=serializers.CharField())
    survives_node = serializers.ListField(child=serializers.CharField())


class StateInventoryOutput(serializers.Serializer[Any]):
    """Rank 0's report at start: what is protected, and what was seen and not recognised."""

    parallelism = serializers.CharField()
    redundancy = serializers.CharField()
    accumulation = serializers.CharField()
    models = serializers.ListField(child=serializers.CharField())
    parts = StatePartOutput(many=True)
    arena_bytes = serializers.IntegerField()
    small_bytes = serializers.IntegerField()
    private_bytes = serializers.IntegerField()
    not_recognised = serializers.ListField(child=serializers.CharField())


class JobOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    customer = serializers.CharField(source="customer.slug")
    cluster = serializers.CharField(source="cluster.slug")
    state = serializers.CharField()
    state_since = serializers.DateTimeField()
    waiting_for = serializers.CharField()
    protection = serializers.CharField()
    protection_reason = serializers.CharField()
    world_size = serializers.IntegerField()
    standbys = serializers.IntegerField()
    priority = serializers.IntegerField()
    preemptible = serializers.BooleanField()
    pool = serializers.CharField()
    command = serializers.ListField(child=serializers.CharField())
    working_directory = serializers.CharField()
    run_as = serializers.CharField()
    redundancy = serializers.CharField()
    accumulation = serializers.CharField()
    limits = serializers.DictField(child=serializers.FloatField())
    attempt = serializers.IntegerField()
    generation = serializers.IntegerField()
    committed_step = serializers.IntegerField()
    checkpoint_step = serializers.IntegerField(allow_null=True)
    parallelism = serializers.CharField()
    inventory = StateInventoryOutput(allow_null=True)
    costs = serializers.DictField(child=serializers.FloatField())
    is_demo = serializers.BooleanField()
    submitted_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    end_reason = serializers.CharField()


class WorkerOutput(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    rank = serializers.IntegerField(allow_null=True)
    provisional_rank = serializers.IntegerField()
    node = serializers.CharField(source="node.name")
    node_id = serializers.IntegerField()
    gpu_index = serializers.IntegerField()
    generation = serializers.IntegerField()
    state = serializers.CharField()
    state_since = serializers.DateTimeField()
    exit_code = serializers.IntegerField(allow_null=True)
    signal = serializers.IntegerField(allow_null=True)
    detail = serializers.CharField()
    exception = serializers.CharField()
    holds_state = serializers.BooleanField()


class ParkingOutput(serializers.Serializer[Any]):
    """One time that a job gave its places up. Customers see no ``for_job_id``, ``reasons`` and ``ranks``."""

    state = serializers.CharField()
    words = serializers.CharField()
    step = serializers.IntegerField(allow_null=True)
    generation = serializers.IntegerField()
    wanted_at = serializers.DateTimeField()
    parked_at = serializers.DateTimeField(allow_null=True)
    resumed_at = serializers.DateTimeField(allow_null=True)
    for_job_id = serializers.IntegerField(allow_null=True)
    reasons = serializers.ListField(child=serializers.CharField())
    ranks = serializers.DictField()


class JobDetailOutput(JobOutput):
    """A job with the workers of its present attempt, ranks first, then standbys, and its parkings."""

    workers = WorkerOutput(many=True)
    parkings = ParkingOutput(many=True)


class StateReleasedOutput(serializers.Serializer[Any]):
    """``ranks``: whose state agents were told to let go of, held in memory or parked on disk."""

    ranks = serializers.ListField(child=serializers.IntegerField())


class JobPageOutput(serializers.Serializer[Any]):
    """``next`` is the ``before`` of the next page, null at the end."""

    results = JobOutput(many=True)
    next = serializers.IntegerField(allow_null=True)


class PointOutput(serializers.Serializer[Any]):
    attempt = serializers.IntegerField()
    generation = serializers.IntegerField()
    step = serializers.IntegerField()
    at = serializers.DateTimeField()
    loss = serializers.FloatField(allow_null=True)
    step_ms = serializers.FloatField()


class StateDigestOutput(serializers.Serializer[Any]):
    attempt = serializers.IntegerField()
    generation = serializers.IntegerField()
    rank = serializers.IntegerField()
    step = serializers.IntegerField()
    digest = serializers.CharField()
    trail_head = serializers.CharField()


class StageOutput(serializers.Serializer[Any]):
    name = serializers.CharField()
    began_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    detail = serializers.DictField()


class MoveOutput(serializers.Serializer[Any]):
    rank = serializers.IntegerField()
    from_node = serializers.CharField(source="from_node.name")
    to_node = serializers.CharField(source="to_node.name")
    source = serializers.CharField()  # type: ignore[assignment]  # a column, not DRF's argument
    finish = serializers.CharField()
    passed_over = serializers.ListField(child=serializers.CharField())
    target_reason = serializers.CharField()
    transfers = serializers.ListField(child=serializers.DictField())
    failed_code = serializers.CharField()
    failed_message = serializers.CharField()


class MigrationOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    job_id = serializers.IntegerField()
    incident_id = serializers.IntegerField(allow_null=True)
    attempt = serializers.IntegerField()
    from_generation = serializers.IntegerField()
    to_generation = serializers.IntegerField(allow_null=True)
    state = serializers.CharField()
    resume_at = serializers.IntegerField(allow_null=True)
    reason = serializers.CharField()
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    stages = StageOutput(many=True)
    moves = MoveOutput(many=True)


class IncidentOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    number = serializers.CharField()
    job_id = serializers.IntegerField()
    job = serializers.CharField(source="job.name")
    customer = serializers.CharField(source="customer.slug")
    cluster = serializers.CharField(source="cluster.slug")
    attempt = serializers.IntegerField()
    generation = serializers.IntegerField()
    predicted = serializers.BooleanField()
    state = serializers.CharField()
    verdict = serializers.CharField()
    verdict_reason = serializers.CharField()
    cause_class = serializers.CharField(allow_null=True)
    summary = serializers.CharField()
    ranks = serializers.ListField(child=serializers.IntegerField())
    node_names = serializers.ListField(child=serializers.CharField())
    step = serializers.IntegerField()
    occurred_at = serializers.DateTimeField()
    observed_at = serializers.DateTimeField()
    recorded_at = serializers.DateTimeField()
    resolved_at = serializers.DateTimeField(allow_null=True)
    protected_again_at = serializers.DateTimeField(allow_null=True)
    pause_ms = serializers.FloatField(allow_null=True)
    lost_steps = serializers.IntegerField(allow_null=True)
    waiting_for = serializers.CharField()
    is_demo = serializers.BooleanField()


class IncidentDetailOutput(IncidentOutput):
    """An incident with what proves its verdict."""

    evidence = serializers.DictField()
    transitions = TransitionOutput(many=True)
    migrations = MigrationOutput(many=True)


class IncidentPageOutput(serializers.Serializer[Any]):
    results = IncidentOutput(many=True)
    next = serializers.IntegerField(allow_null=True)
