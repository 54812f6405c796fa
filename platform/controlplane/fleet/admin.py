"""What happened to the pool, to look at: events, moves and what people did. Nothing is edited."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import FleetEventRecord, MigrationRecord


class ReadOnlyAdmin(ModelAdmin):
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(FleetEventRecord)
class FleetEventRecordAdmin(ReadOnlyAdmin):
    list_display = ["at", "severity", "kind", "instance", "headline"]
    list_filter = ["severity", "kind"]
    search_fields = ["headline", "instance"]


@admin.register(MigrationRecord)
class MigrationRecordAdmin(ReadOnlyAdmin):
    list_display = [
        "started_at",
        "request_id",
        "source",
        "destination",
        "state",
        "abort_code",
        "downtime_ms",
        "asked_by",
    ]
    list_filter = ["state", "abort_code", "asked_by"]
    search_fields = ["migration_id", "request_id", "source", "destination"]


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ["at", "who", "action", "object", "result", "reason"]
    list_filter = ["action", "result", "who"]
    search_fields = ["object", "request_id", "migration_id"]
