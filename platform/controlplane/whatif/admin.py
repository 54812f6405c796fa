"""Runs to look at; they are started and cancelled on the What if page."""

from django.contrib import admin

from controlplane.admin_base import HistoryAdmin
from controlplane.whatif.models import SimulationRun


@admin.register(SimulationRun)
class SimulationRunAdmin(HistoryAdmin):
    list_display = ["created_at", "name", "who", "state", "progress", "ttft_p99_ms", "moves"]
    list_filter = ["state", "who"]
    search_fields = ["run_id__exact", "name"]
    exclude = ["report", "baseline_report"]
