"""The schedule of scaling in the admin; and what was decided, to look at."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane.admin_base import HistoryAdmin, RoleAdmin
from controlplane.audit.models import AuditEntry
from controlplane.scaling import services
from controlplane.scaling.models import ScalingDecision, ScalingState, ScalingWindow
from controlplane.tenants.access import Access


@admin.register(ScalingWindow)
class ScalingWindowAdmin(RoleAdmin):
    """Operators say at which hours which bounds are in force."""

    list_display = [
        "name", "pool", "weekdays", "begins", "ends", "timezone", "min_instances",
        "max_instances", "is_enabled",
    ]  # fmt: skip
    list_select_related = ["pool"]
    list_filter = ["is_enabled"]
    search_fields = ["name", "pool__name"]
    autocomplete_fields = ["pool"]
    fields = ["pool", *services.WINDOW_FIELDS, "reason", "seen_version"]
    can_delete = True

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [] if obj is None else ["pool"]

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> ScalingWindow:
        if is_new:
            values = form.values(services.WINDOW_FIELDS)
            return services.window_add(
                access=access, pool=row.pool, changes=values, reason=form.why
            )
        return services.window_update(
            access=access, window=row, changes=form.changes(services.WINDOW_FIELDS),
            version=form.version, reason=form.why,
        )  # fmt: skip

    def row_deleted(self, access: Access, row: Any) -> None:
        services.window_remove(access=access, window=row)

    def entries_about(self, row: ScalingWindow) -> "QuerySet[AuditEntry]":
        return AuditEntry.objects.filter(object=str(row), action__startswith="scaling_window_")


@admin.register(ScalingDecision)
class ScalingDecisionAdmin(HistoryAdmin):
    list_display = [
        "at", "pool", "kind", "signal", "instances_before", "instances_after", "is_applied",
        "reason",
    ]  # fmt: skip
    list_filter = ["kind", "signal", "mode", "is_applied"]
    search_fields = ["pool__exact", "instance__exact"]


@admin.register(ScalingState)
class ScalingStateAdmin(HistoryAdmin):
    list_display = ["pool", "tick", "fence", "checked_at"]
    list_select_related = ["pool"]
    search_fields = ["pool__name"]
