"""The pool's events, to look at."""

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from controlplane.fleet.models import FleetEventRecord


@admin.register(FleetEventRecord)
class FleetEventRecordAdmin(ModelAdmin):
    list_display = ["at", "severity", "kind", "instance", "headline"]
    list_filter = ["severity", "kind"]
    search_fields = ["headline", "instance"]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(
        self, request: HttpRequest, obj: FleetEventRecord | None = None
    ) -> bool:
        return False

    def has_delete_permission(
        self, request: HttpRequest, obj: FleetEventRecord | None = None
    ) -> bool:
        return False
