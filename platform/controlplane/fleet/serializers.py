"""The shapes of the fleet's API. Units stand in the names; null means that nobody reported it."""

from rest_framework import serializers


class InstanceSerializer(serializers.Serializer[object]):
    name = serializers.CharField()
    node = serializers.CharField()
    state = serializers.CharField(
        help_text="starting, serving, cordoned, draining, drained, stopping, stopped, lost, "
        "crash_loop: it dies again and again, or no_progress: requests run, but no step ends."
    )
    cause = serializers.CharField(help_text="Why it is in this state, in words.")
    since_unix_s = serializers.FloatField(help_text="When it entered the state.")
    at_unix_s = serializers.FloatField(
        allow_null=True, help_text="Time of its last report; null: it never reported."
    )
    is_stale = serializers.BooleanField(help_text="The last report is older than 5 s.")
    capacity_tokens = serializers.IntegerField(allow_null=True)
    used_tokens = serializers.IntegerField(allow_null=True)
    virtual_tokens = serializers.IntegerField(
        allow_null=True, help_text="Sum of virtual usages; null also when draining (infinite)."
    )
    freeness_steps = serializers.FloatField(
        allow_null=True,
        help_text="Decode steps the batch can still take; null when idle, draining or unknown.",
    )
    running = serializers.IntegerField(allow_null=True)
    waiting = serializers.IntegerField(allow_null=True)
    step_ms = serializers.FloatField(allow_null=True)
    preemptions_per_min = serializers.IntegerField(allow_null=True)
    caption = serializers.CharField(help_text="What matters most about it now, in words.")
    restarts = serializers.IntegerField()
    wanted = serializers.CharField(
        help_text="What it shall do, its node's wish included: serving, cordoned, drained, stopped."
    )
    wanted_by = serializers.CharField(allow_blank=True, help_text="Who; empty: nobody.")


class LatencySerializer(serializers.Serializer[object]):
    p50_ms = serializers.FloatField(allow_null=True)
    p90_ms = serializers.FloatField(allow_null=True)
    p99_ms = serializers.FloatField(allow_null=True)
    requests = serializers.IntegerField(help_text="How many requests the minute had.")


class TotalsSerializer(serializers.Serializer[object]):
    desired = serializers.IntegerField()
    serving = serializers.IntegerField()
    starting = serializers.IntegerField()
    failing = serializers.IntegerField()
    leaving = serializers.IntegerField()
    reporting = serializers.IntegerField(help_text="Instances whose last report is fresh.")
    running = serializers.IntegerField(allow_null=True)
    waiting = serializers.IntegerField(allow_null=True)
    requests_per_s = serializers.FloatField(allow_null=True, help_text="Ended, mean of 1 min.")
    output_tokens_per_s = serializers.FloatField(allow_null=True, help_text="Mean of 10 s.")
    prompt_tokens_per_s = serializers.FloatField(allow_null=True, help_text="Mean of 10 s.")
    used_tokens = serializers.IntegerField(allow_null=True)
    virtual_tokens = serializers.IntegerField(allow_null=True)
    capacity_tokens = serializers.IntegerField(allow_null=True)
    ttft = LatencySerializer(help_text="Time to the first token over the last minute.")


class PartSerializer(serializers.Serializer[object]):
    key = serializers.CharField()
    name = serializers.CharField()
    answers = serializers.BooleanField(allow_null=True, help_text="null: not known now.")
    since_unix_s = serializers.FloatField(allow_null=True)
    headline = serializers.CharField()
    still_works = serializers.CharField()
    what_to_do = serializers.CharField()


class SnapshotSerializer(serializers.Serializer[object]):
    at_unix_s = serializers.FloatField()
    pool = serializers.CharField()
    model = serializers.CharField()
    totals = TotalsSerializer()
    parts = PartSerializer(many=True)
    instances = InstanceSerializer(many=True)


class EventSerializer(serializers.Serializer[object]):
    at_unix_s = serializers.FloatField()
    kind = serializers.CharField()
    headline = serializers.CharField()
    detail = serializers.CharField()
    instance = serializers.CharField(allow_blank=True)
    severity = serializers.CharField(help_text="info, warn or bad.")


class PointSerializer(serializers.Serializer[object]):
    at_unix_s = serializers.FloatField()
    freeness = serializers.ListField(
        child=serializers.FloatField(allow_null=True), help_text="Decode steps, one a series."
    )
    used_percent = serializers.FloatField(allow_null=True)
    virtual_percent = serializers.FloatField(allow_null=True)
    used_max_percent = serializers.FloatField(allow_null=True)
    output_tokens_per_s = serializers.FloatField(allow_null=True)
    prompt_tokens_per_s = serializers.FloatField(allow_null=True)


class HistorySerializer(serializers.Serializer[object]):
    series = serializers.ListField(
        child=serializers.CharField(),
        help_text="Instances; p10, median, p90 and the least free one when there are more than 16.",
    )
    points = PointSerializer(many=True)
