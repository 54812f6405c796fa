"""The audit in the admin, to look at; the Audit page searches it and exports it."""

from django.contrib import admin
from unfold.decorators import display

from controlplane.admin_base import HistoryAdmin
from controlplane.audit.models import AuditEntry


@admin.register(AuditEntry)
class AuditEntryAdmin(HistoryAdmin):
    list_display = [
        "at", "who", "role", "action", "object", "tenant", "shown_result", "reason",
    ]  # fmt: skip
    list_filter = ["result", "action"]
    search_fields = [
        "object__startswith", "who__exact", "tenant__exact", "request_id__exact",
        "migration_id__exact", "http_request_id__exact",
    ]  # fmt: skip

    @display(
        description="result", label={"done": "success", "refused": "warning", "failed": "danger"}
    )
    def shown_result(self, entry: AuditEntry) -> str:
        return entry.result
