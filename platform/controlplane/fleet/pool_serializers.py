"""The shapes of the API of pools and model aliases. Units stand in the names."""

from typing import Any

from rest_framework import serializers

from controlplane.api.fields import BIGINT_MAX, INT_MAX, Number, reason
from controlplane.api.shapes import PageSerializer
from controlplane.fleet.models import SCALING_TIME_MAX_S, ScalingMode

INSTANCES_MAX = 512


def _count(help_text: str = "") -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=0, max_value=INSTANCES_MAX, required=False, help_text=help_text
    )


def _limit(most: int = INT_MAX) -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=0, max_value=most, allow_null=True, required=False, help_text="Null: no limit."
    )


def _seconds(help_text: str) -> Number:
    return Number(min_value=0.0, max_value=SCALING_TIME_MAX_S, required=False, help_text=help_text)


class PoolSettings(serializers.Serializer[object]):
    """What may be set of a pool."""

    served_model_name = serializers.CharField(
        max_length=200, help_text="What clients call the model; changed only while it is off."
    )
    model = serializers.CharField(
        max_length=500,
        required=False,
        allow_blank=True,
        help_text="A folder or a hub id; empty: the default model. Changed only while it is off.",
    )
    is_enabled = serializers.BooleanField(
        required=False, help_text="false: its instances are stopped."
    )
    instances = _count("Wanted now.")
    min_instances = _count()
    max_instances = _count()
    engine_settings = serializers.DictField(
        required=False, help_text="Settings of its engines that differ from the environment's."
    )
    band_low_steps = Number(
        required=False, help_text="Average freeness under which the pool grows."
    )
    band_high_steps = Number(required=False, help_text="Average freeness over which it shrinks.")
    rebalance_below_steps = Number(
        required=False, help_text="An instance less free than this gives requests away."
    )
    rebalance_above_steps = Number(
        required=False, help_text="An instance freer than this takes them."
    )
    requests_per_minute = _limit()
    tokens_per_minute = _limit(BIGINT_MAX)
    concurrency = _limit()
    is_rolling = serializers.BooleanField(
        required=False,
        help_text="Instances with other engine settings are replaced one by one, without a cut.",
    )
    scaling_mode = serializers.ChoiceField(
        ScalingMode.choices,
        required=False,
        help_text="off; advise: decisions are stored and shown, nobody acts on them; act.",
    )
    grow_after_s = _seconds("How long the average must have been under the band.")
    shrink_after_s = _seconds("How long the average must have been over the band.")
    grow_cooldown_s = _seconds("After a growth, until the next one.")
    shrink_cooldown_s = _seconds("After any change, until an instance is drained.")
    ttft_attainment_floor = Number(
        min_value=0.0, max_value=1.0, allow_null=True, required=False,
        help_text="Share of requests within their TTFT target, queue included, under which the pool"
        " grows; null: this signal is off.",
    )  # fmt: skip
    zero_after_s = Number(
        min_value=1.0, max_value=SCALING_TIME_MAX_S, allow_null=True, required=False,
        help_text="Idle for so long, the last instance is stopped as well; null: never. Needs"
        " min_instances 0.",
    )  # fmt: skip
    hold_s = Number(
        min_value=0.0, max_value=600.0, required=False,
        help_text="How long a request waits for the first instance of a pool at zero, while"
        " scaling_mode is act; 0: it is refused at once.",
    )  # fmt: skip
    hold_max = serializers.IntegerField(
        min_value=0, max_value=10_000, required=False,
        help_text="Requests that wait so at the same time, in one web process.",
    )  # fmt: skip
    reason = reason()


class PoolInput(PoolSettings):
    name = serializers.CharField(max_length=32, help_text="In addresses; cannot be changed.")


class PoolOutput(serializers.Serializer[object]):
    name = serializers.CharField()
    served_model_name = serializers.CharField()
    model = serializers.CharField()
    aliases = serializers.SerializerMethodField()
    is_enabled = serializers.BooleanField()
    instances = serializers.IntegerField()
    min_instances = serializers.IntegerField()
    max_instances = serializers.IntegerField()
    engine_settings = serializers.DictField()
    band_low_steps = serializers.FloatField()
    band_high_steps = serializers.FloatField()
    rebalance_below_steps = serializers.FloatField()
    rebalance_above_steps = serializers.FloatField()
    requests_per_minute = serializers.IntegerField(allow_null=True)
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    concurrency = serializers.IntegerField(allow_null=True)
    is_rolling = serializers.BooleanField()
    scaling_mode = serializers.ChoiceField(ScalingMode.choices)
    grow_after_s = serializers.FloatField()
    shrink_after_s = serializers.FloatField()
    grow_cooldown_s = serializers.FloatField()
    shrink_cooldown_s = serializers.FloatField()
    ttft_attainment_floor = serializers.FloatField(allow_null=True)
    zero_after_s = serializers.FloatField(allow_null=True)
    hold_s = serializers.FloatField()
    hold_max = serializers.IntegerField()
    version = serializers.IntegerField(help_text="Also the ETag.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def get_aliases(self, pool: Any) -> list[str]:
        """Other names under which clients may ask for its model"""
        return sorted(alias.alias for alias in pool.aliases.all())


class PoolsOutput(PageSerializer):
    data = PoolOutput(many=True)


class AliasInput(serializers.Serializer[object]):
    reason = reason()


class AliasOutput(serializers.Serializer[object]):
    alias = serializers.CharField()
    pool = serializers.CharField(source="pool.name")
    version = serializers.IntegerField()
    updated_at = serializers.DateTimeField()


class AliasesOutput(PageSerializer):
    data = AliasOutput(many=True)
