"""The shapes of the API of SLOs and priority classes. Units stand in the names."""

from typing import Any

from rest_framework import serializers

from controlplane.api.fields import INT_MAX, Number, reason
from controlplane.api.shapes import PageSerializer
from controlplane.tenants.serializers import CLASSES


class SloInput(serializers.Serializer[object]):
    ttft_ms = Number(
        min_value=1.0, allow_null=True, required=False, help_text="Longest time to the first token."
    )
    tpot_ms = Number(
        min_value=0.1,
        allow_null=True,
        required=False,
        help_text="Longest mean time per token after the first.",
    )
    objective = Number(min_value=0.5, max_value=0.9999, required=False)
    window_days = serializers.IntegerField(min_value=1, max_value=90, required=False)
    reason = reason()


class SloOutput(serializers.Serializer[object]):
    tenant = serializers.SerializerMethodField()
    priority_class = serializers.ChoiceField(CLASSES)
    ttft_ms = serializers.FloatField(allow_null=True)
    tpot_ms = serializers.FloatField(allow_null=True)
    objective = serializers.FloatField(help_text="Share of requests that meet all targets.")
    window_days = serializers.IntegerField()
    version = serializers.IntegerField(help_text="Also the ETag.")
    updated_at = serializers.DateTimeField()

    def get_tenant(self, slo: Any) -> str | None:
        """Slug; null: of every tenant without one of its own"""
        return None if slo.tenant is None else str(slo.tenant.slug)


class SlosOutput(PageSerializer):
    data = SloOutput(many=True)


class ClassInput(serializers.Serializer[object]):
    headroom_tokens = serializers.IntegerField(
        min_value=0, max_value=INT_MAX, allow_null=True, required=False
    )
    headroom_share = Number(min_value=0.0, max_value=0.95, allow_null=True, required=False)
    ageing_s = Number(min_value=0.0, allow_null=True, required=False)
    is_preemptible = serializers.BooleanField(required=False)
    reason = reason()


class ClassOutput(serializers.Serializer[object]):
    name = serializers.ChoiceField(CLASSES)
    rank = serializers.IntegerField(help_text="0 is the most urgent.")
    headroom_tokens = serializers.IntegerField(
        allow_null=True, help_text="KV cache kept free on an instance that serves the class."
    )
    headroom_share = serializers.FloatField(allow_null=True, help_text="The same as a share.")
    ageing_s = serializers.FloatField(
        allow_null=True,
        help_text="Waiting so long counts as one class higher; 0: never; null: the pool's setting.",
    )
    is_preemptible = serializers.BooleanField()
    version = serializers.IntegerField(help_text="Also the ETag.")
    updated_at = serializers.DateTimeField()


class ClassesOutput(PageSerializer):
    data = ClassOutput(many=True)
