"""How rows of the nodes app are shown over REST."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class GpuOutput(serializers.Serializer[Any]):
    index = serializers.IntegerField()
    uuid = serializers.CharField()
    model = serializers.CharField()
    memory_bytes = serializers.IntegerField()
    simulated = serializers.BooleanField()


class FindingOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    component = serializers.CharField()
    entity = serializers.CharField()
    check_name = serializers.CharField()
    severity = serializers.CharField()
    fatal = serializers.BooleanField()
    action = serializers.CharField()
    evidence = serializers.ListField(child=serializers.CharField())
    injected = serializers.BooleanField()
    simulated = serializers.BooleanField()
    count = serializers.IntegerField()
    first_seen_at = serializers.DateTimeField()
    last_seen_at = serializers.DateTimeField()
    cleared_at = serializers.DateTimeField(allow_null=True)
    overruled_by = serializers.CharField()
    held_reason = serializers.CharField()


class NodeOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    cluster = serializers.CharField(source="cluster.slug")
    name = serializers.CharField()
    hostname = serializers.CharField()
    pool = serializers.CharField()
    rack = serializers.CharField()
    failure_domain = serializers.CharField()
    state = serializers.CharField()
    state_since = serializers.DateTimeField()
    suspect_rule = serializers.CharField()
    held_state = serializers.CharField()
    is_spare = serializers.BooleanField()
    boot_id = serializers.CharField()
    agent_version = serializers.CharField()
    runs_as_root = serializers.BooleanField()
    last_heard_at = serializers.DateTimeField(allow_null=True)
    heartbeat_s = serializers.FloatField()
    readings = serializers.ListField(child=serializers.DictField())
    gpus = GpuOutput(many=True)
    findings = FindingOutput(many=True, source="findings_open")


class EnrollmentTokenOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    cluster = serializers.CharField(source="cluster.slug")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    used_at = serializers.DateTimeField(allow_null=True)
    used_by = serializers.CharField(source="used_by.name", allow_null=True, default=None)
    token = serializers.CharField(required=False, help_text="only in the answer that creates it")


class PolicyOutput(serializers.Serializer[Any]):
    version = serializers.IntegerField(help_text="0 is the policy built in")
    policy = serializers.DictField()


class BreakerOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    cluster = serializers.CharField(source="cluster.slug")
    rule = serializers.CharField()
    scope = serializers.CharField()
    scope_name = serializers.CharField()
    node = serializers.CharField(source="node.name")
    reason = serializers.CharField()
    tripped_at = serializers.DateTimeField()
    reset_at = serializers.DateTimeField(allow_null=True)
    reset_by = serializers.CharField()
