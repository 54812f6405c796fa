"""The shapes of the API of usage, prices and how SLOs stand. Costs are decimals, as text."""

from typing import Final

from rest_framework import serializers

from controlplane.api.fields import Time, reason
from controlplane.api.pagination import PageQuery
from controlplane.api.shapes import PageSerializer
from controlplane.tenants.models import CLASS_CHOICES
from controlplane.usage.sums import GROUPS

CLASSES: Final = [value for value, _ in CLASS_CHOICES]
LIMIT_MAX: Final = 1000
"""Rows of usage in an answer: more than the hours of a month."""
SLOW_MAX: Final = 200


class UsageQuery(PageQuery):
    limit = serializers.IntegerField(
        min_value=1, max_value=LIMIT_MAX, default=LIMIT_MAX, help_text="Rows in an answer, of JSON."
    )
    group_by = serializers.ChoiceField(GROUPS, default="day")
    since = Time(required=False, help_text="Rounded down to the hour; default: a month before.")
    until = Time(required=False, help_text="Rounded up to the hour; default: now.")
    format = serializers.ChoiceField(["json", "csv"], required=False)


class UsageRow(serializers.Serializer[object]):
    group = serializers.CharField(
        help_text="The time's beginning, the model, the class, the tenant's slug, or the key."
    )
    at = serializers.DateTimeField(allow_null=True, help_text="Of hours, days and months.")
    key = serializers.CharField(allow_null=True, help_text="A key's public id; null: no key.")
    requests = serializers.IntegerField()
    failed = serializers.IntegerField()
    partial = serializers.IntegerField(help_text="Cancelled ones, with what they had used.")
    prompt_tokens = serializers.IntegerField(help_text="The cached ones included.")
    cached_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cost = serializers.DecimalField(max_digits=18, decimal_places=8)


class UsageOutput(PageSerializer):
    group_by = serializers.ChoiceField(GROUPS)
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    data = UsageRow(many=True)


class PricesQuery(PageQuery):
    model = serializers.CharField(max_length=200, required=False)


class PriceInput(serializers.Serializer[object]):
    model = serializers.CharField(max_length=200, help_text="As clients call it.")
    valid_from = Time(required=False, help_text="Default: now.")
    prompt_per_million = serializers.DecimalField(max_digits=12, decimal_places=4, min_value=0)
    cached_per_million = serializers.DecimalField(
        max_digits=12, decimal_places=4, min_value=0, help_text="Of prompt tokens found in a cache."
    )
    output_per_million = serializers.DecimalField(max_digits=12, decimal_places=4, min_value=0)
    reason = reason()


class PriceOutput(serializers.Serializer[object]):
    model = serializers.CharField()
    valid_from = serializers.DateTimeField()
    prompt_per_million = serializers.DecimalField(max_digits=12, decimal_places=4)
    cached_per_million = serializers.DecimalField(max_digits=12, decimal_places=4)
    output_per_million = serializers.DecimalField(max_digits=12, decimal_places=4)
    created_by = serializers.CharField()


class PricesOutput(PageSerializer):
    data = PriceOutput(many=True)


class ReportQuery(PageQuery):
    tenant = serializers.CharField(max_length=50, required=False, help_text="Slug.")


class SloPointOutput(serializers.Serializer[object]):
    at = serializers.DateTimeField()
    requests = serializers.IntegerField()
    attainment = serializers.FloatField(allow_null=True)


class SloStateOutput(serializers.Serializer[object]):
    tenant = serializers.CharField()
    priority_class = serializers.ChoiceField(CLASSES)
    ttft_ms = serializers.FloatField(allow_null=True, source="target.ttft_ms")
    tpot_ms = serializers.FloatField(allow_null=True, source="target.tpot_ms")
    objective = serializers.FloatField()
    window_days = serializers.IntegerField()
    requests = serializers.IntegerField(help_text="In the window, that count.")
    met = serializers.IntegerField()
    failed = serializers.IntegerField()
    ttft_missed = serializers.IntegerField()
    tpot_missed = serializers.IntegerField()
    attainment = serializers.FloatField(allow_null=True, help_text="Null: too few requests to say.")
    budget_left = serializers.FloatField(
        allow_null=True, help_text="Share of the error budget; below 0 it is overspent."
    )
    burn_5m = serializers.FloatField(allow_null=True)
    burn_30m = serializers.FloatField(allow_null=True)
    burn_1h = serializers.FloatField(allow_null=True)
    burn_6h = serializers.FloatField(allow_null=True)
    alert = serializers.ChoiceField(["page", "ticket", ""])
    series = SloPointOutput(many=True, help_text="Oldest first.")


class ReportOutput(PageSerializer):
    data = SloStateOutput(many=True)


class SlowQuery(serializers.Serializer[object]):
    tenant = serializers.CharField(max_length=50, required=False, help_text="Slug.")
    priority_class = serializers.ChoiceField(CLASSES, required=False)
    since = Time(required=False, help_text="Default: an hour ago.")
    limit = serializers.IntegerField(min_value=1, max_value=SLOW_MAX, default=50)
