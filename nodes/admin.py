"""The machines in Django's admin: to look at, never to change."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from .models import (
    BreakerTrip,
    EnrollmentToken,
    Finding,
    Gpu,
    HealthPolicy,
    Node,
    NodeTransition,
)


class ReadOnly(admin.ModelAdmin[Any]):  # Any: one class for every table of this app
    """Rows are written by services alone."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Node)
class NodeAdmin(ReadOnly):
    list_display = ["name", "cluster", "pool", "rack", "state", "state_since", "last_heard_at"]
    list_filter = ["state", "pool", "cluster"]
    search_fields = ["name", "hostname"]
    exclude = ["token_hash"]


@admin.register(NodeTransition)
class NodeTransitionAdmin(ReadOnly):
    list_display = ["at", "node", "from_state", "to_state", "actor", "reason"]


@admin.register(Finding)
class FindingAdmin(ReadOnly):
    list_display = ["last_seen_at", "node", "check_name", "entity", "severity", "cleared_at"]
    list_filter = ["check_name", "severity"]


@admin.register(EnrollmentToken)
class EnrollmentTokenAdmin(ReadOnly):
    list_display = ["created_at", "cluster", "created_by", "expires_at", "used_at", "used_by"]
    exclude = ["token_hash"]


@admin.register(Gpu)
class GpuAdmin(ReadOnly):
    list_display = ["node", "index", "uuid", "model", "memory_bytes", "simulated"]


@admin.register(HealthPolicy)
class HealthPolicyAdmin(ReadOnly):
    list_display = ["version", "note", "created_by", "created_at"]


@admin.register(BreakerTrip)
class BreakerTripAdmin(ReadOnly):
    list_display = ["tripped_at", "rule", "scope", "scope_name", "node", "reset_at", "reset_by"]
