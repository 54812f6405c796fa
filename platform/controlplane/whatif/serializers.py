"""The shapes of the API of what-if runs. Units stand in the names; null: not known, or not yet."""

from rest_framework import serializers

from controlplane.whatif.limits import NAME_MAX_CHARS
from controlplane.whatif.models import RunState

_STATES = ", ".join(RunState.values)


class RunInput(serializers.Serializer[object]):
    name = serializers.CharField(
        max_length=NAME_MAX_CHARS,
        allow_blank=True,
        default="",
        help_text="Default: the scenario's.",
    )
    scenario = serializers.DictField(
        help_text="The sections of a scenario file: pool, workload, costs, policy, scaling; name "
        "and seed. What is left out has the simulator's default."
    )
    baseline = serializers.DictField(
        allow_null=True,
        default=None,
        help_text="A second scenario to compare with; give it the same workload and seed.",
    )
    baseline_label = serializers.CharField(max_length=40, allow_blank=True, default="baseline")


class RunSerializer(serializers.Serializer[object]):
    run_id = serializers.CharField()
    name = serializers.CharField()
    who = serializers.CharField(help_text="Who asked for it.")
    state = serializers.ChoiceField(choices=RunState.values, help_text=_STATES + ".")
    progress = serializers.FloatField(help_text="0 to 1.")
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    ttft_p99_ms = serializers.FloatField(allow_null=True, help_text="Of the scenario.")
    moves = serializers.IntegerField(allow_null=True, help_text="Of the scenario.")
    error = serializers.CharField(help_text="Why it failed; empty unless it did.")


class RunDetailSerializer(RunSerializer):
    scenario = serializers.DictField()
    baseline = serializers.DictField(allow_null=True)
    baseline_label = serializers.CharField()
    report = serializers.DictField(
        allow_null=True,
        help_text="scenario, summary, by_class, series, moves, wall_s, as the simulator tells.",
    )
    baseline_report = serializers.DictField(allow_null=True)


class RunsSerializer(serializers.Serializer[object]):
    runs = RunSerializer(many=True)
    left_out = serializers.IntegerField(help_text="Older ones that match too.")
