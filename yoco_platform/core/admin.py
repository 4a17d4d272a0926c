"""Django's admin of the frame: people and sites are kept here, what is written once is only shown."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from .audit import audit
from .auth import Role, viewer_of
from .models import ApiToken, AuditEntry, Cluster, Customer, User, WebhookDelivery, WebhookEndpoint
from .tokens import token_revoke

admin.site.site_header = "Yoco administration"
admin.site.unregister(Group)  # roles are a table in the code, not groups


class Audited(admin.ModelAdmin[Any]):  # Any: one base for several tables
    """Leaves an audit entry for each row saved; rows are never deleted here."""

    def save_model(
        self, request: HttpRequest, obj: Model, form: ModelForm[Any], change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        name = obj._meta.model_name
        done = "change" if change else "create"
        fields = sorted(set(form.changed_data) - {"password"})
        audit(viewer_of(request), f"{name}.{done}", f"{name}:{obj.pk}", {"fields": fields})

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class Shown(admin.ModelAdmin[Any]):
    """Rows that are looked at, never edited."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(User)
class PersonAdmin(Audited, UserAdmin[User]):
    list_display = ("username", "role", "customer", "is_active", "last_login")
    list_filter = ("role", "is_active")
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("Role", {"fields": ("role", "customer", "cluster", "is_active")}),
    )
    add_fieldsets = (
        (None, {"fields": ("username", "role", "customer", "cluster", "password1", "password2")}),
    )
    filter_horizontal = ()

    def save_model(
        self, request: HttpRequest, obj: Model, form: ModelForm[Any], change: bool
    ) -> None:
        assert isinstance(obj, User)
        # The role decides who gets in here; Django's own flags follow it.
        obj.is_staff = obj.is_superuser = obj.role == Role.ADMIN
        super().save_model(request, obj, form, change)


@admin.register(Customer, Cluster)
class SiteAdmin(Audited):
    list_display = ("slug", "name")


@admin.register(ApiToken)
class TokenAdmin(Shown):
    list_display = ("name", "role", "cluster", "customer", "created_at", "expires_at", "revoked_at")
    exclude = ("token_hash",)
    actions = ("revoke",)

    @admin.action(description="Revoke the chosen tokens", permissions=["view"])
    def revoke(self, request: HttpRequest, tokens: QuerySet[ApiToken]) -> None:
        for token in tokens:
            token_revoke(viewer=viewer_of(request), token=token)


@admin.register(WebhookEndpoint)
class WebhookAdmin(Shown):
    list_display = ("name", "url", "customer", "cluster", "is_active")
    exclude = ("secret",)


@admin.register(WebhookDelivery)
class DeliveryAdmin(Shown):
    list_display = ("endpoint", "notice_id", "state", "attempts", "last_status", "created_at")
    list_filter = ("state",)


@admin.register(AuditEntry)
class AuditAdmin(Shown):
    list_display = ("at", "actor", "role", "action", "subject")
    list_filter = ("action",)
