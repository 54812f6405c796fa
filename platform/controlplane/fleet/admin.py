"""Pools and their names in the admin; and what happened to them, to look at."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import display

from controlplane.admin_actions import Action, confirmed
from controlplane.admin_base import HistoryAdmin, RoleAdmin, check_version
from controlplane.audit.models import AuditEntry
from controlplane.fleet import pool_services
from controlplane.fleet.models import (
    FleetEventRecord,
    MigrationRecord,
    ModelAlias,
    Pool,
    WantedInstance,
    WantedNode,
)
from controlplane.tenants.access import Access, Role

SEVERITIES = {"info": "info", "warning": "warning", "error": "danger"}


@admin.register(Pool)
class PoolAdmin(RoleAdmin):
    """Owners add and remove pools; operators set how many instances and when they are added."""

    list_display = [
        "name", "served_model_name", "is_enabled", "instances", "min_instances", "max_instances",
        "updated_at",
    ]  # fmt: skip
    list_filter = ["is_enabled"]
    search_fields = ["name", "served_model_name", "model"]
    actions = ["switch_off", "switch_on"]
    can_delete = True
    fieldsets = [
        (None, {"fields": ["name", "served_model_name", "model", "engine_settings"]}),
        ("Instances", {"fields": [
            "is_enabled", "instances", "min_instances", "max_instances", "is_rolling",
        ]}),
        ("Freeness", {
            "fields": [
                "band_low_steps", "band_high_steps", "rebalance_below_steps",
                "rebalance_above_steps",
            ],
        }),
        ("Scaling", {
            "fields": [
                "scaling_mode", "grow_after_s", "shrink_after_s", "grow_cooldown_s",
                "shrink_cooldown_s", "ttft_attainment_floor", "zero_after_s", "hold_s", "hold_max",
            ],
        }),
        ("Limits of all tenants together", {
            "fields": ["requests_per_minute", "tokens_per_minute", "concurrency"],
        }),
        ("This change", {"fields": ["reason", "seen_version"]}),
    ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Pool | None = None) -> list[str]:
        if obj is None:
            return []
        is_owner = self.access_of(request).allows(Role.OWNER)
        return ["name"] if is_owner else ["name", *pool_services.OWNER_FIELDS]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.access_of(request).allows(Role.OWNER)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.access_of(request).allows(Role.OWNER)

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> Pool:
        if is_new:
            values = form.values(("name", *pool_services.POOL_FIELDS))
            return pool_services.pool_create(access=access, changes=values, reason=form.why)
        return pool_services.pool_update(
            access=access, pool=row, changes=form.changes(pool_services.POOL_FIELDS),
            version=form.version, reason=form.why,
        )  # fmt: skip

    def row_deleted(self, access: Access, row: Any) -> None:
        pool_services.pool_remove(access=access, pool=row)

    def entries_about(self, row: Pool) -> "QuerySet[AuditEntry]":
        return AuditEntry.objects.filter(object=row.name, action__startswith="pool_")

    @admin.action(description="Switch the selected pools off", permissions=["change"])
    def switch_off(self, request: HttpRequest, rows: "QuerySet[Pool]") -> HttpResponse | None:
        action = Action(
            "switch_off", "Switch off",
            "The instances of these pools stop, and requests for their models are refused.",
            lambda access, pool, reason: _enable(access, pool, False, reason),
        )  # fmt: skip
        return confirmed(self, request, rows, action)

    @admin.action(description="Switch the selected pools on", permissions=["change"])
    def switch_on(self, request: HttpRequest, rows: "QuerySet[Pool]") -> HttpResponse | None:
        action = Action(
            "switch_on", "Switch on", "The instances of these pools start.",
            lambda access, pool, reason: _enable(access, pool, True, reason),
            is_dangerous=False,
        )  # fmt: skip
        return confirmed(self, request, rows, action)


@admin.register(ModelAlias)
class ModelAliasAdmin(RoleAdmin):
    list_display = ["alias", "pool", "updated_at"]
    list_select_related = ["pool"]
    search_fields = ["alias", "pool__name"]
    autocomplete_fields = ["pool"]
    fields = ["alias", "pool", "reason", "seen_version"]
    can_delete = True

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [] if obj is None else ["alias"]

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> ModelAlias:
        if not is_new:
            check_version(ModelAlias.objects.get(pk=row.pk), form.version)
        return pool_services.alias_set(
            access=access, alias=row.alias, pool=row.pool, reason=form.why
        )

    def row_deleted(self, access: Access, row: Any) -> None:
        pool_services.alias_remove(access=access, alias=row)

    def entries_about(self, row: ModelAlias) -> "QuerySet[AuditEntry]":
        return AuditEntry.objects.filter(
            object__startswith=f"{row.alias} -> ", action__startswith="alias_"
        )


@admin.register(FleetEventRecord)
class FleetEventRecordAdmin(HistoryAdmin):
    list_display = ["at", "shown_severity", "kind", "instance", "headline"]
    list_filter = ["severity", "kind"]
    search_fields = ["headline", "instance__exact"]

    @display(description="severity", ordering="severity", label=SEVERITIES)
    def shown_severity(self, event: FleetEventRecord) -> str:
        return event.severity


@admin.register(MigrationRecord)
class MigrationRecordAdmin(HistoryAdmin):
    list_display = [
        "started_at", "request_id", "source", "destination", "state", "abort_code",
        "downtime_ms", "total_ms", "stages", "asked_by",
    ]  # fmt: skip
    list_filter = ["state", "pool", "priority_class"]
    search_fields = [
        "migration_id__exact", "request_id__exact", "source__exact", "destination__exact",
    ]  # fmt: skip


class _WishAdmin(HistoryAdmin):
    """To look at: wishes are made on the pages, by REST and by `manage.py drain`."""

    list_filter = ["wanted", "leftover"]


@admin.register(WantedInstance)
class WantedInstanceAdmin(_WishAdmin):
    list_display = ["instance", "pool", "wanted", "by", "reason", "since", "deadline"]
    list_select_related = ["pool"]
    search_fields = ["instance__exact", "by__exact"]


@admin.register(WantedNode)
class WantedNodeAdmin(_WishAdmin):
    list_display = ["node", "wanted", "by", "reason", "since", "deadline"]
    search_fields = ["node__exact", "by__exact"]


def _enable(access: Access, pool: Pool, is_enabled: bool, reason: str) -> None:
    changes = {"is_enabled": is_enabled}
    pool_services.pool_update(access=access, pool=pool, changes=changes, reason=reason)
