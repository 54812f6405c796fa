"""The requests, to look at. There may be ten million: what is searched for has an index."""

from django.contrib import admin
from unfold.decorators import display

from controlplane.admin_base import HistoryAdmin
from controlplane.gateway.models import RequestRecord


@admin.register(RequestRecord)
class RequestRecordAdmin(HistoryAdmin):
    list_display = [
        "arrived_at", "request_id", "tenant", "model", "priority_class", "shown_status",
        "instance", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "migrations", "cost",
    ]  # fmt: skip
    list_filter = ["status", "priority_class", "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["request_id__exact"]
    search_help_text = "The whole request id."
    ordering = ["-arrived_at"]

    @display(
        description="status",
        label={"completed": "success", "cancelled": "info", "detached": "info", "failed": "danger"},
    )
    def shown_status(self, record: RequestRecord) -> str:
        return record.status
