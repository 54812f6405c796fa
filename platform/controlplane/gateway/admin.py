"""The requests, to look at."""

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from controlplane.gateway.models import RequestRecord


@admin.register(RequestRecord)
class RequestRecordAdmin(ModelAdmin):
    list_display = [
        "arrived_at",
        "request_id",
        "tenant",
        "priority_class",
        "status",
        "instance",
        "prompt_tokens",
        "output_tokens",
        "ttft_ms",
        "tpot_ms",
    ]
    list_filter = ["status", "priority_class", "tenant"]
    search_fields = ["request_id"]
    list_select_related = ["tenant"]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: RequestRecord | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: RequestRecord | None = None) -> bool:
        return False
