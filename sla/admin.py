"""The books in Django's admin: to look at, never to change."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from .models import Contract, ContractYear, Entry, Terms


class ReadOnly(admin.ModelAdmin[Any]):  # Any: one class for every table of this app
    """Rows are written by services alone."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Contract)
class ContractAdmin(ReadOnly):
    list_display = ["number", "customer", "first_date", "zone", "currency", "is_demo"]


@admin.register(Terms)
class TermsAdmin(ReadOnly):
    list_display = ["contract", "version", "effective_from", "created_by"]


@admin.register(ContractYear)
class ContractYearAdmin(ReadOnly):
    list_display = ["contract", "ordinal", "starts_at", "ends_at"]


@admin.register(Entry)
class EntryAdmin(ReadOnly):
    list_display = ["contract", "sequence", "onset", "verdict", "rule", "incident"]
    list_filter = ["verdict"]
    exclude = ["body", "proof"]
