"""Runs to look at; they are started and cancelled on the What if page."""

from django.contrib import admin

from controlplane.fleet.admin import ReadOnlyAdmin
from controlplane.whatif.models import SimulationRun


@admin.register(SimulationRun)
class SimulationRunAdmin(ReadOnlyAdmin):
    list_display = ["created_at", "name", "who", "state", "progress", "ttft_p99_ms", "moves"]
    list_filter = ["state", "who"]
    search_fields = ["run_id", "name"]
    exclude = ["report", "baseline_report"]
