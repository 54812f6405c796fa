"""Tenants, members, keys, classes and SLOs in the admin. A secret is shown once, in the message
after a key was made or rotated."""

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from unfold.decorators import display

from controlplane.admin_actions import Action, confirmed
from controlplane.admin_base import RoleAdmin, check_version
from controlplane.admin_history import about_key
from controlplane.audit.models import AuditEntry
from controlplane.tenants import admin_people, services
from controlplane.tenants.access import Access, Role
from controlplane.tenants.admin_forms import KeyForm, TenantForm
from controlplane.tenants.models import (
    ApiKey,
    ClassSettings,
    Membership,
    Slo,
    Tenant,
    TenantState,
)

__all__ = ["admin_people"]

ROTATION_GRACE = timedelta(hours=24)
"""How long the old secret works after a rotation from here; the pages let one choose."""
KEY_ROWS_MAX = 5000
"""Rows of the audit that are searched for those of one key."""


@admin.register(Tenant)
class TenantAdmin(RoleAdmin):
    form = TenantForm
    list_display = [
        "name", "slug", "shown_state", "default_class", "highest_class", "weight",
        "requests_per_minute", "tokens_per_minute", "concurrency", "monthly_budget",
    ]  # fmt: skip
    list_filter = ["state", "highest_class"]
    search_fields = ["name", "slug"]
    actions = ["block", "unblock"]
    fieldsets = [
        (None, {"fields": ["name", "slug", "state", "allowed_models"]}),
        ("Priority", {"fields": ["default_class", "highest_class", "weight"]}),
        ("Limits", {"fields": list(services.LIMIT_FIELDS)}),
        ("This change", {"fields": ["reason", "seen_version"]}),
    ]

    @display(description="state", label={"active": "success", "blocked": "danger"})
    def shown_state(self, tenant: Tenant) -> str:
        return tenant.state

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        return [] if obj is None else ["slug"]

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> Tenant:
        if is_new:
            values = form.values(services.TENANT_FIELDS)
            return services.tenant_create(access=access, reason=form.why, **values)
        return services.tenant_update(
            access=access, tenant=row, changes=form.changes(services.TENANT_FIELDS),
            version=form.version, reason=form.why,
        )  # fmt: skip

    def entries_about(self, row: Tenant) -> "QuerySet[AuditEntry]":
        return AuditEntry.objects.filter(tenant=row.slug, action__startswith="tenant_")

    @admin.action(description="Block the selected tenants", permissions=["change"])
    def block(self, request: HttpRequest, rows: "QuerySet[Tenant]") -> HttpResponse | None:
        action = Action(
            "block", "Block", "Requests of these tenants will be refused within a second.",
            lambda access, row, reason: _set_state(access, row, TenantState.BLOCKED, reason),
        )  # fmt: skip
        return confirmed(self, request, rows, action)

    @admin.action(description="Unblock the selected tenants", permissions=["change"])
    def unblock(self, request: HttpRequest, rows: "QuerySet[Tenant]") -> HttpResponse | None:
        action = Action(
            "unblock", "Unblock", "Requests of these tenants will be taken again.",
            lambda access, row, reason: _set_state(access, row, TenantState.ACTIVE, reason),
            is_dangerous=False,
        )  # fmt: skip
        return confirmed(self, request, rows, action)


@admin.register(Membership)
class MembershipAdmin(RoleAdmin):
    list_display = ["user", "tenant", "role", "updated_at"]
    list_filter = ["role"]
    list_select_related = ["user", "tenant"]
    search_fields = ["user__username", "tenant__slug", "tenant__name"]
    autocomplete_fields = ["tenant", "user"]
    fields = ["tenant", "user", "role", "reason", "seen_version"]
    can_delete = True

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [] if obj is None else ["tenant", "user"]

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> Membership:
        check_version(Membership.objects.get(pk=row.pk) if not is_new else row, form.version)
        return services.member_set(
            access=access, tenant=row.tenant, user=row.user,
            role=Role(form.cleaned_data["role"]), reason=form.why,
        )  # fmt: skip

    def row_deleted(self, access: Access, row: Any) -> None:
        services.member_remove(access=access, member=row)

    def entries_about(self, row: Membership) -> "QuerySet[AuditEntry]":
        return AuditEntry.objects.filter(
            tenant=row.tenant.slug, action__startswith="member_", object__startswith=f"{row.user}: "
        )


@admin.register(ApiKey)
class ApiKeyAdmin(RoleAdmin):
    form = KeyForm
    list_display = ["name", "tenant", "hint", "shown_state", "expires_at", "last_used_at"]
    list_filter = [("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ["tenant"]
    search_fields = ["name", "public_id__exact", "last4__exact", "tenant__slug", "tenant__name"]
    autocomplete_fields = ["tenant"]
    actions = ["revoke", "rotate"]
    shown = [
        "hint", "public_id", "old_until", "created_at", "created_by", "revoked_at", "last_used_at",
    ]  # fmt: skip
    fieldsets = [
        (None, {"fields": ["tenant", "name", "expires_at"]}),
        ("What it may", {"fields": ["scopes", "allowed_models", "allowed_networks"]}),
        ("The key", {"fields": shown}),
        ("This change", {"fields": ["reason", "seen_version"]}),
    ]

    @display(
        description="state",
        label={"live": "success", "revoked": "danger", "expired": "warning", "rotating": "info"},
    )
    def shown_state(self, key: ApiKey) -> str:
        if key.revoked_at is not None:
            return "revoked"
        if not key.is_live:
            return "expired"
        is_rotating = key.old_until is not None and key.old_until > timezone.now()
        return "rotating" if is_rotating else "live"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.shown, *([] if obj is None else ["tenant"])]

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> ApiKey:
        if not is_new:
            return services.key_update(
                access=access, key=row, changes=form.changes(services.KEY_FIELDS),
                version=form.version, reason=form.why,
            )  # fmt: skip
        values = form.values(services.KEY_FIELDS)
        key, form.new_text = services.key_create(
            access=access, tenant=row.tenant, reason=form.why, **values
        )
        return key

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change:
            messages.warning(request, _once(form.new_text))

    def entries_about(self, row: ApiKey) -> Any:
        entries = AuditEntry.objects.filter(tenant=row.tenant.slug, action__startswith="key_")
        return about_key(entries[:KEY_ROWS_MAX], row.name, row.last4)

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, rows: "QuerySet[ApiKey]") -> HttpResponse | None:
        def act(access: Access, key: ApiKey, reason: str) -> None:
            services.key_revoke(access=access, key=key, reason=reason)

        action = Action(
            "revoke", "Revoke", "These keys will stop working within a second, for good.", act
        )
        return confirmed(self, request, rows.select_related("tenant"), action)

    @admin.action(description="Rotate the selected keys", permissions=["change"])
    def rotate(self, request: HttpRequest, rows: "QuerySet[ApiKey]") -> HttpResponse | None:
        def act(access: Access, key: ApiKey, reason: str) -> str:
            until = timezone.now() + ROTATION_GRACE
            _, text = services.key_rotate(access=access, key=key, old_until=until, reason=reason)
            return _once(text)

        action = Action(
            "rotate", "Rotate",
            "Each key gets a new secret, shown once; the old one works for 24 h more.", act,
        )  # fmt: skip
        return confirmed(self, request, rows.select_related("tenant"), action)


@admin.register(ClassSettings)
class ClassSettingsAdmin(RoleAdmin):
    list_display = ["name", "headroom_tokens", "headroom_share", "ageing_s", "is_preemptible"]
    fields = ["name", *services.CLASS_FIELDS, "reason", "seen_version"]
    readonly_fields = ["name"]
    can_add = False

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> ClassSettings:
        return services.class_update(
            access=access, settings=row, changes=form.changes(services.CLASS_FIELDS),
            version=form.version, reason=form.why,
        )  # fmt: skip

    def entries_about(self, row: ClassSettings) -> "QuerySet[AuditEntry]":
        return AuditEntry.objects.filter(action="class_update", object=str(row))


@admin.register(Slo)
class SloAdmin(RoleAdmin):
    list_display = ["__str__", "ttft_ms", "tpot_ms", "objective", "window_days"]
    list_filter = ["priority_class"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__slug", "tenant__name"]
    autocomplete_fields = ["tenant"]
    fields = ["tenant", "priority_class", *services.SLO_FIELDS, "reason", "seen_version"]
    can_delete = True

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [] if obj is None else ["tenant", "priority_class"]

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> Slo:
        values = form.values(services.SLO_FIELDS) if is_new else form.changes(services.SLO_FIELDS)
        return services.slo_set(
            access=access, tenant=row.tenant, priority_class=row.priority_class, changes=values,
            version=form.version, reason=form.why,
        )  # fmt: skip

    def row_deleted(self, access: Access, row: Any) -> None:
        services.slo_remove(access=access, slo=row)

    def entries_about(self, row: Slo) -> "QuerySet[AuditEntry]":
        slug = row.tenant.slug if row.tenant is not None else ""
        return AuditEntry.objects.filter(
            tenant=slug, action__startswith="slo_", object__endswith=f", {row.priority_class}"
        )


def _set_state(access: Access, tenant: Tenant, state: str, reason: str) -> None:
    services.tenant_update(access=access, tenant=tenant, changes={"state": state}, reason=reason)


def _once(text: str) -> str:
    return f"Copy the key now, it is not shown again: {text}"
