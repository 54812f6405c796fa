"""Calls with an Idempotency-Key, to look at."""

from django.contrib import admin

from controlplane.admin_base import HistoryAdmin
from controlplane.api.models import IdempotentCall


@admin.register(IdempotentCall)
class IdempotentCallAdmin(HistoryAdmin):
    list_display = ["claimed_at", "actor", "status"]
    search_fields = ["actor"]
    fields = ["claimed_at", "actor", "status", "answer"]
    ordering = ["-claimed_at"]
