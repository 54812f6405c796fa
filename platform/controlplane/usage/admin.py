"""Prices, which owners add; sums of usage and of SLOs, to look at."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet

from controlplane.admin_base import HistoryAdmin, RoleAdmin
from controlplane.audit.models import AuditEntry
from controlplane.tenants.access import Access, Role
from controlplane.usage.models import ModelPrice, SloMinutes, UsageDay, UsageHour
from controlplane.usage.prices import PRICE_FIELDS, price_set


@admin.register(ModelPrice)
class ModelPriceAdmin(RoleAdmin):
    """A price is changed by a new one that begins later, or by setting the same moment's again."""

    change_role = Role.OWNER
    list_display = ["model", "valid_from", *PRICE_FIELDS, "created_by"]
    list_filter = ["valid_from"]
    search_fields = ["model"]
    fields = ["model", "valid_from", *PRICE_FIELDS, "reason"]

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        return [] if obj is None else ["model", "valid_from"]

    def row_saved(self, access: Access, row: Any, form: Any, is_new: bool) -> ModelPrice:
        return price_set(
            access=access, model=row.model, valid_from=row.valid_from,
            **{name: getattr(row, name) for name in PRICE_FIELDS}, reason=form.why,
        )  # fmt: skip

    def entries_about(self, row: ModelPrice) -> "QuerySet[AuditEntry]":
        return AuditEntry.objects.filter(object=str(row)[:200], action="price_set")


class UsageAdmin(HistoryAdmin):
    sums = [
        "tenant", "model", "priority_class", "key_id", "requests", "failed", "partial",
        "prompt_tokens", "cached_tokens", "output_tokens", "cost",
    ]  # fmt: skip
    list_filter = ["priority_class", "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__slug__exact", "model__exact"]


@admin.register(UsageHour)
class UsageHourAdmin(UsageAdmin):
    list_display = ["hour", *UsageAdmin.sums]
    ordering = ["-hour"]


@admin.register(UsageDay)
class UsageDayAdmin(UsageAdmin):
    list_display = ["day", *UsageAdmin.sums]
    ordering = ["-day"]


@admin.register(SloMinutes)
class SloMinutesAdmin(HistoryAdmin):
    list_display = [
        "at", "length_s", "tenant", "priority_class", "requests", "met", "ttft_missed",
        "tpot_missed", "failed",
    ]  # fmt: skip
    list_filter = ["length_s", "priority_class", "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__slug__exact"]
    ordering = ["-at"]
