"""The shapes of the API of drains. Units stand in the names; null means that nobody reported it."""

from rest_framework import serializers

from controlplane.api.fields import INT_MAX, Number, reason
from controlplane.fleet.wish_terms import DEADLINE_MAX_S
from engine_pool.policy.wishes import Leftover


class WishInput(serializers.Serializer[object]):
    """What every change of a wish takes."""

    version = serializers.IntegerField(
        min_value=1,
        max_value=INT_MAX,
        required=False,
        help_text="Of the wish that you have seen; needed to replace another person's.",
    )
    force = serializers.BooleanField(
        default=False,
        help_text="Also when no instance of the pool is left that serves, and whoever wished "
        "before.",
    )
    reason = reason()


class DrainInput(WishInput):
    deadline_s = Number(
        min_value=1,
        max_value=DEADLINE_MAX_S,
        allow_null=True,
        default=None,
        help_text="After so many seconds `leftover` is done to what is still there; null: never.",
    )
    leftover = serializers.ChoiceField(
        choices=[x.value for x in Leftover],
        default=Leftover.WAIT.value,
        help_text="wait: they go on. replay: they go on elsewhere from their logs. end: they end "
        "with an error.",
    )


class NodeDrainInput(DrainInput):
    stop = serializers.BooleanField(
        default=False, help_text="true: the engines are ended once they are empty."
    )


class WishSerializer(serializers.Serializer[object]):
    wanted = serializers.CharField(help_text="serving, cordoned, drained or stopped.")
    by = serializers.CharField(help_text="Who: a user's name, or scaling.")
    reason = serializers.CharField()
    since = serializers.DateTimeField()
    deadline = serializers.DateTimeField(allow_null=True)
    leftover = serializers.CharField()
    renew_before = serializers.DateTimeField(
        allow_null=True, help_text="An engine that is older is replaced by a new one."
    )
    version = serializers.IntegerField()


class LeftSerializer(serializers.Serializer[object]):
    request_id = serializers.CharField()
    priority_class = serializers.CharField()
    is_queued = serializers.BooleanField()
    kv_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    moves_to = serializers.CharField(help_text="Empty: it is not on its way.")
    migration_id = serializers.CharField(help_text="Of its last move; empty: none.")
    why = serializers.CharField(help_text="What it waits for, or why it cannot move.")


class InstanceDrainSerializer(serializers.Serializer[object]):
    instance = serializers.CharField()
    pool = serializers.CharField()
    node = serializers.CharField(help_text="Empty: it is nowhere.")
    state = serializers.CharField(help_text="Empty: nobody reports it.")
    cause = serializers.CharField()
    since_unix_s = serializers.FloatField(allow_null=True)
    wanted = serializers.CharField(help_text="The stricter of its own and its node's wish.")
    wanted_by = serializers.CharField()
    wish = WishSerializer(allow_null=True, help_text="Its own; null: it serves.")
    node_wish = WishSerializer(allow_null=True)
    is_renewing = serializers.BooleanField(help_text="A new engine is to take its place.")
    is_outdated = serializers.BooleanField(help_text="It runs with former engine settings.")
    begun_unix_s = serializers.FloatField(allow_null=True)
    requests_at_start = serializers.IntegerField(allow_null=True)
    left = serializers.IntegerField(allow_null=True, help_text="Requests that run or wait there.")
    moving = serializers.IntegerField(allow_null=True)
    moved = serializers.IntegerField(allow_null=True)
    ended = serializers.IntegerField(allow_null=True, help_text="By themselves, since the start.")
    requests_per_s = serializers.FloatField(allow_null=True)
    last_move_unix_s = serializers.FloatField(allow_null=True)
    estimate_s = serializers.FloatField(allow_null=True)
    deadline_unix_s = serializers.FloatField(allow_null=True)
    leftover = serializers.CharField()
    obstacle = serializers.CharField(help_text="Why nothing moves; empty: it does.")
    report_age_s = serializers.FloatField(allow_null=True)
    is_safe_to_stop = serializers.BooleanField(
        help_text="Proven empty, by a check that still holds. Never true before."
    )
    why_not_safe = serializers.CharField()
    verified_unix_s = serializers.FloatField(allow_null=True)
    requests = LeftSerializer(many=True, help_text="What is left, the first 100.")


class NodeSerializer(serializers.Serializer[object]):
    node = serializers.CharField()
    wish = WishSerializer(allow_null=True, help_text="Null: nothing is wanted of it.")
    left = serializers.IntegerField(allow_null=True, help_text="Requests on all its instances.")
    estimate_s = serializers.FloatField(allow_null=True)
    is_safe_to_stop = serializers.BooleanField(help_text="All of its instances are.")
    why_not_safe = serializers.CharField()
    instances = InstanceDrainSerializer(many=True)


class NodesSerializer(serializers.Serializer[object]):
    data = NodeSerializer(many=True)
