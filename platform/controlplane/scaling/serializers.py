"""The shapes of the API of scaling. Units stand in the names."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from controlplane.api.fields import Time, TimeOfDay, reason
from controlplane.api.pagination import PageQuery
from controlplane.api.shapes import PageSerializer
from controlplane.fleet.models import ScalingMode
from controlplane.fleet.pool_serializers import INSTANCES_MAX
from controlplane.scaling.models import DecisionKind

EVERY_DAY = 127


class DecisionsQuery(PageQuery):
    pool = serializers.CharField(max_length=32, required=False, help_text="Of this pool only.")
    kind = serializers.ChoiceField(
        DecisionKind.choices, required=False, help_text="Of this kind only; left out: all."
    )
    since = Time(required=False, help_text="Decided at this time or later.")
    until = Time(required=False, help_text="Decided before this time.")


class DecisionOutput(serializers.Serializer[object]):
    id = serializers.SerializerMethodField()
    pool = serializers.CharField()
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(DecisionKind.choices)
    signal = serializers.CharField(
        help_text="What it followed: freeness, ttft, schedule, demand, idle, bounds."
    )
    mode = serializers.ChoiceField(ScalingMode.choices)
    instances_before = serializers.IntegerField()
    instances_after = serializers.IntegerField()
    instance = serializers.CharField(help_text="Drained, undrained, woken, or the first one added.")
    is_applied = serializers.BooleanField(help_text="false: advice, refused, or nothing to do.")
    reason = serializers.CharField()
    average_steps = serializers.FloatField(
        allow_null=True, help_text="Average freeness; null: nothing ran, or nobody knew."
    )
    is_idle = serializers.BooleanField()
    low_steps = serializers.FloatField()
    high_steps = serializers.FloatField()
    ttft_attainment = serializers.FloatField(allow_null=True)
    serving = serializers.IntegerField()
    starting = serializers.IntegerField()
    draining = serializers.IntegerField()
    silent = serializers.IntegerField(help_text="Without a fresh report.")

    def get_id(self, row: Any) -> str:
        """As in the page's address"""
        return f"{row.pool}-{row.tick}"


class DecisionsOutput(PageSerializer):
    data = DecisionOutput(many=True)


class BoundsOutput(serializers.Serializer[object]):
    min_instances = serializers.IntegerField()
    max_instances = serializers.IntegerField()
    window = serializers.CharField(help_text="Whose they are; empty: the pool's own.")


class OnItsWayOutput(serializers.Serializer[object]):
    instance = serializers.CharField()
    node = serializers.CharField()
    state = serializers.CharField()
    since_unix_s = serializers.FloatField()
    words = serializers.CharField()


class SeenOutput(serializers.Serializer[object]):
    wanted = serializers.IntegerField(help_text="Instances that are wanted to serve.")
    serving = serializers.IntegerField()
    starting = serializers.IntegerField()
    draining = serializers.IntegerField()
    silent = serializers.IntegerField()
    away = serializers.IntegerField(help_text="Cordoned, drained or stopped by people.")
    failing = serializers.IntegerField(help_text="In a crash loop.")
    average_steps = serializers.FloatField(
        allow_null=True, help_text="Average freeness; null: nothing runs, or nobody knows."
    )
    is_idle = serializers.BooleanField()
    on_their_way = OnItsWayOutput(many=True)


class ScalingNowOutput(serializers.Serializer[object]):
    pool = serializers.CharField()
    mode = serializers.ChoiceField(ScalingMode.choices)
    low_steps = serializers.FloatField()
    high_steps = serializers.FloatField()
    bounds = BoundsOutput(help_text="In force now.")
    next_bounds_at = serializers.DateTimeField(allow_null=True)
    checks = serializers.IntegerField(help_text="So far.")
    checked_at = serializers.DateTimeField(allow_null=True)
    next_check_at = serializers.DateTimeField(allow_null=True)
    is_late = serializers.BooleanField(help_text="Nobody checks, though somebody should.")
    under_since = serializers.DateTimeField(
        allow_null=True, help_text="Since when the average has been under the band."
    )
    over_since = serializers.DateTimeField(allow_null=True)
    idle_since = serializers.DateTimeField(allow_null=True)
    ttft_under_since = serializers.DateTimeField(allow_null=True)
    grow_blocked_until = serializers.DateTimeField(allow_null=True, help_text="By a cool-down.")
    shrink_blocked_until = serializers.DateTimeField(allow_null=True)
    held_requests = serializers.IntegerField(
        allow_null=True, help_text="That wait in this web process for the pool's first instance."
    )
    now = SeenOutput(
        allow_null=True, help_text="null: the pool is off, or its picture cannot be had."
    )
    last_change = DecisionOutput(allow_null=True)


class WindowInput(serializers.Serializer[object]):
    name = serializers.CharField(max_length=64)
    weekdays = serializers.IntegerField(
        min_value=1, max_value=EVERY_DAY, required=False,
        help_text="Bits, Monday 1 to Sunday 64: the days on which it begins; left out: all.",
    )  # fmt: skip
    begins = TimeOfDay(format="%H:%M:%S")
    ends = TimeOfDay(format="%H:%M:%S", help_text="Not after `begins`: on the next day.")
    timezone = serializers.CharField(
        max_length=64, required=False, help_text="An IANA name; left out: UTC."
    )
    min_instances = serializers.IntegerField(min_value=0, max_value=INSTANCES_MAX)
    max_instances = serializers.IntegerField(
        min_value=0, max_value=INSTANCES_MAX, allow_null=True, required=False,
        help_text="null: the pool's own.",
    )  # fmt: skip
    is_enabled = serializers.BooleanField(required=False)
    reason = reason()


class WindowOutput(serializers.Serializer[object]):
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.name")
    weekdays = serializers.IntegerField()
    begins = TimeOfDay(format="%H:%M:%S")
    ends = TimeOfDay(format="%H:%M:%S")
    timezone = serializers.CharField()
    min_instances = serializers.IntegerField()
    max_instances = serializers.IntegerField(allow_null=True)
    is_enabled = serializers.BooleanField()
    version = serializers.IntegerField(help_text="Also the ETag.")
    updated_at = serializers.DateTimeField()


class WindowsOutput(PageSerializer):
    data = WindowOutput(many=True)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a window's values without what no row could hold: seconds stay, fractions go."""
    return {
        name: value.replace(microsecond=0, tzinfo=None) if hasattr(value, "microsecond") else value
        for name, value in values.items()
    }
