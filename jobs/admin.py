"""Django's admin shows the rows of this app and changes none: services are the only writers."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from .models import (
    AgentEvent,
    Generation,
    Incident,
    IncidentTransition,
    Job,
    JobTransition,
    Migration,
    Move,
    Order,
    Parking,
    Stage,
    Worker,
)


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own class is not generic
    """No add, no change, no delete."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = ("id", "name", "customer", "state", "protection", "attempt", "generation")
    list_filter = ("state", "protection", "cluster")
    search_fields = ("name",)


@admin.register(Incident)
class IncidentAdmin(ReadOnly):
    list_display = ("number", "job", "state", "verdict", "cause_class", "occurred_at")
    list_filter = ("state", "verdict", "cause_class", "predicted")


@admin.register(Parking)
class ParkingAdmin(ReadOnly):
    list_display = ("id", "job", "for_job", "state", "step", "wanted_at", "parked_at", "resumed_at")
    list_filter = ("state",)


@admin.register(Migration)
class MigrationAdmin(ReadOnly):
    list_display = ("id", "job", "incident", "state", "from_generation", "to_generation")
    list_filter = ("state",)


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    list_display = ("id", "job", "node", "rank", "generation", "state")
    list_filter = ("state",)


@admin.register(Order)
class OrderAdmin(ReadOnly):
    """Bodies carry one-time secrets of stores and streams, so they are not shown."""

    list_display = ("id", "node", "job", "kind", "state", "code", "created_at", "deadline_at")
    list_filter = ("state", "kind")
    exclude = ("body",)


@admin.register(AgentEvent)
class AgentEventAdmin(ReadOnly):
    list_display = ("id", "node", "job", "kind", "occurred_at", "refused_code")
    list_filter = ("kind", "refused_code")


@admin.register(Generation)
class GenerationAdmin(ReadOnly):
    list_display = ("job", "attempt", "number", "resume_at", "store_node", "began_at")
    exclude = ("store_prefix", "store_secret")


for plain in (JobTransition, IncidentTransition, Move, Stage):
    admin.site.register(plain, ReadOnly)
