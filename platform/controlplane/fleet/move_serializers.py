"""The shapes of the API of moves. Units stand in the names; null means: not known, or not yet."""

from rest_framework import serializers

from controlplane.api.shapes import ErrorBodySerializer
from migration.report import MoveState

_STATES = ", ".join(s.value for s in MoveState)


class MigrateInput(serializers.Serializer[object]):
    destination = serializers.CharField(
        max_length=64,
        allow_null=True,
        default=None,
        help_text="An instance; null: the one that would be the freest with the request.",
    )
    reason = serializers.CharField(
        max_length=500, allow_blank=True, default="", help_text="For the move's record."
    )


class CancelInput(serializers.Serializer[object]):
    reason = serializers.CharField(max_length=500, allow_blank=True, default="")


class PreflightInput(serializers.Serializer[object]):
    tokens = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=10_000_000),
        max_length=20,
        required=False,
        help_text="Lengths to predict; default: 128, 512, 1024, 3000. The longest is always added.",
    )


class MigrationSerializer(serializers.Serializer[object]):
    migration_id = serializers.CharField()
    request_id = serializers.CharField(help_text="As the engines know it.")
    source = serializers.CharField()
    destination = serializers.CharField()
    state = serializers.CharField(help_text=_STATES + ".")
    asked_by = serializers.CharField()
    reason = serializers.CharField(help_text="With the numbers that made the decision.")
    abort_code = serializers.CharField(help_text="A slug; empty unless aborted.")
    abort_reason = serializers.CharField(help_text="In words.")
    tenant = serializers.CharField()
    priority_class = serializers.CharField()
    is_queued = serializers.BooleanField(help_text="It was waiting: it moved without a copy.")
    started_unix_s = serializers.FloatField()
    ended_unix_s = serializers.FloatField(allow_null=True, help_text="null: it goes on.")
    downtime_ms = serializers.FloatField(
        allow_null=True,
        help_text="From the last token at the source to the first at the destination.",
    )
    total_ms = serializers.FloatField(help_text="From start to end, or so far.")
    tokens_at_start = serializers.IntegerField(help_text="Tokens with KV when it began.")
    sent_bytes = serializers.IntegerField()
    stage_count = serializers.IntegerField(help_text="Copies, the last one included.")


class StageSerializer(serializers.Serializer[object]):
    number = serializers.IntegerField(help_text="From 1.")
    is_last = serializers.BooleanField(help_text="The request stood still meanwhile.")
    started_ms = serializers.FloatField(help_text="Since the move's start.")
    took_ms = serializers.FloatField()
    blocks = serializers.IntegerField()
    bytes = serializers.IntegerField()
    gather_ms = serializers.FloatField(help_text="Part of it that went into fusing the blocks.")


class MessageSerializer(serializers.Serializer[object]):
    at_ms = serializers.FloatField(help_text="Since the move's start.")
    sender = serializers.CharField(help_text="source or destination.")
    name = serializers.CharField()
    note = serializers.CharField()


class MigrationDetailSerializer(MigrationSerializer):
    is_live = serializers.BooleanField(help_text="As the engines report it now.")
    report_age_s = serializers.FloatField()
    prompt_tokens = serializers.IntegerField()
    tokens_at_pause = serializers.IntegerField(allow_null=True)
    output_tokens_at_pause = serializers.IntegerField(allow_null=True)
    block_size_tokens = serializers.IntegerField()
    block_bytes = serializers.IntegerField()
    cached_blocks = serializers.IntegerField(help_text="The destination had them: not sent.")
    reserved_blocks = serializers.IntegerField()
    blocks_left = serializers.IntegerField(allow_null=True)
    paused_ms = serializers.FloatField(allow_null=True, help_text="Since the move's start.")
    committed_ms = serializers.FloatField(allow_null=True)
    first_token_ms = serializers.FloatField(allow_null=True, help_text="At the destination.")
    ended_ms = serializers.FloatField(allow_null=True)
    source_step_ms = serializers.FloatField(allow_null=True, help_text="While it went on.")
    source_step_before_ms = serializers.FloatField(allow_null=True)
    source_freeness = serializers.FloatField(allow_null=True, help_text="Decode steps, before.")
    destination_freeness = serializers.FloatField(allow_null=True)
    source_token_ms = serializers.ListField(
        child=serializers.FloatField(), help_text="Times of the source's last tokens."
    )
    destination_token_ms = serializers.ListField(
        child=serializers.FloatField(), help_text="Times of the destination's first tokens."
    )
    stages = StageSerializer(many=True)
    messages = MessageSerializer(many=True)


class MigrationsSerializer(serializers.Serializer[object]):
    migrations = MigrationSerializer(many=True)
    left_out = serializers.IntegerField(help_text="Older ones that match too.")


class DestinationSerializer(serializers.Serializer[object]):
    instance = serializers.CharField()
    freeness_now_steps = serializers.FloatField(
        allow_null=True, help_text="Decode steps; null: idle, or no fresh report."
    )
    freeness_after_steps = serializers.FloatField(
        allow_null=True, help_text="With the request there."
    )
    why_not = serializers.CharField(help_text="Empty: the request fits.")


class PlanSerializer(serializers.Serializer[object]):
    request_id = serializers.CharField()
    source = serializers.CharField()
    is_queued = serializers.BooleanField()
    kv_tokens = serializers.IntegerField(help_text="Tokens whose KV would be copied, in blocks.")
    source_freeness_steps = serializers.FloatField(allow_null=True)
    report_age_s = serializers.FloatField()
    freest = serializers.CharField(allow_null=True, help_text="null: none fits.")
    destinations = DestinationSerializer(many=True, help_text="The best first.")


class PairSerializer(serializers.Serializer[object]):
    source = serializers.CharField()
    destination = serializers.CharField()


class PairWaySerializer(PairSerializer):
    gb_per_s = serializers.FloatField(allow_null=True, help_text="10^9 bytes a second.")
    round_trip_ms = serializers.FloatField(allow_null=True)
    problem = serializers.CharField(help_text="Why it could not be measured.")


class ForecastSerializer(serializers.Serializer[object]):
    tokens = serializers.IntegerField()
    stages = serializers.IntegerField()
    copy_blocks = serializers.ListField(child=serializers.IntegerField())
    last_blocks = serializers.IntegerField()
    copy_ms = serializers.FloatField()
    downtime_ms = serializers.FloatField()
    bytes = serializers.IntegerField()


class SelfTestSerializer(serializers.Serializer[object]):
    at_unix_s = serializers.FloatField()
    ok = serializers.BooleanField()
    detail = serializers.CharField()
    source = serializers.CharField()
    destination = serializers.CharField()
    downtime_ms = serializers.FloatField(allow_null=True)
    is_conclusive = serializers.BooleanField(
        help_text="False: it could not be carried out; it is repeated."
    )


class ObstacleSerializer(serializers.Serializer[object]):
    what = serializers.CharField()
    why = serializers.CharField()
    applies = serializers.CharField(help_text="yes, no, unknown or per request.")


class PreflightSerializer(serializers.Serializer[object]):
    at_unix_s = serializers.FloatField(help_text="When it was measured.")
    ok = serializers.BooleanField(help_text="Moves would work.")
    verdict = serializers.CharField()
    serving = serializers.ListField(child=serializers.CharField())
    token_bytes = serializers.IntegerField(allow_null=True, help_text="KV bytes of a token.")
    block_bytes = serializers.IntegerField(allow_null=True)
    block_size_tokens = serializers.IntegerField(allow_null=True)
    ways = PairWaySerializer(many=True)
    left_out = PairSerializer(many=True, help_text="Pairs that were not measured.")
    slowest = PairSerializer(allow_null=True, help_text="The way that is predicted for.")
    step_ms = serializers.FloatField()
    is_step_assumed = serializers.BooleanField(help_text="No engine has made a step yet.")
    forecasts = ForecastSerializer(many=True)
    self_test = SelfTestSerializer(allow_null=True)
    obstacles = ObstacleSerializer(many=True)


class MoveErrorBodySerializer(ErrorBodySerializer):
    reason = serializers.CharField(
        required=False, help_text="Of a refused move: its slug, as in abort_code."
    )


class MoveErrorSerializer(serializers.Serializer[object]):
    error = MoveErrorBodySerializer()
