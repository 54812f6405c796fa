"""The shapes of the API of requests: those that run now and those that have ended look alike."""

from typing import Any, Final

from rest_framework import serializers

from controlplane.api.fields import Time
from controlplane.api.shapes import PageSerializer
from controlplane.gateway.models import RequestRecord, RequestStatus
from controlplane.tenants.models import CLASS_CHOICES

RUNNING: Final = "running"
WAITING: Final = "waiting"
LIVE: Final = "live"
ENDED: Final = "ended"
STATES: Final = (RUNNING, WAITING, *RequestStatus.values)
CLASSES: Final = [value for value, _ in CLASS_CHOICES]
LIMIT_MAX: Final = 1000
LIMIT_DEFAULT: Final = 200


class RequestsQuery(serializers.Serializer[object]):
    state = serializers.ChoiceField(
        [LIVE, RUNNING, WAITING, ENDED, *RequestStatus.values],
        default=LIVE,
        help_text="live: running and waiting ones, as instances report them; the others: of the "
        "records, the newest first.",
    )
    tenant = serializers.CharField(max_length=50, required=False, help_text="Slug.")
    priority_class = serializers.ChoiceField(CLASSES, required=False)
    model = serializers.CharField(max_length=200, required=False)
    pool = serializers.CharField(max_length=32, required=False)
    instance = serializers.CharField(max_length=64, required=False)
    key = serializers.CharField(
        max_length=16, required=False, help_text="A key's public id; of ended ones."
    )
    since = Time(required=False, help_text="Arrived at or after; of ended ones.")
    until = Time(required=False, help_text="Arrived before; of ended ones.")
    missed = serializers.BooleanField(
        default=False, help_text="Those that missed a target; of ended ones."
    )
    replayed = serializers.BooleanField(
        default=False, help_text="Those that lost an engine and went on elsewhere; of ended ones."
    )
    q = serializers.CharField(
        max_length=128,
        required=False,
        help_text="A request's id, or of ended ones its X-Request-Id.",
    )
    limit = serializers.IntegerField(min_value=1, max_value=LIMIT_MAX, default=LIMIT_DEFAULT)
    cursor = serializers.CharField(
        max_length=600, required=False, help_text="`next_cursor` of the page before; of ended ones."
    )


def _number(help_text: str = "") -> serializers.FloatField:
    return serializers.FloatField(allow_null=True, default=None, help_text=help_text)


class RequestOutput(serializers.Serializer[object]):
    request_id = serializers.CharField(
        help_text="Of one that runs: as its engine knows it; moves and cancels take it."
    )
    public_id = serializers.CharField(help_text="As the client saw it.")
    state = serializers.ChoiceField(STATES)
    tenant = serializers.CharField(allow_null=True, help_text="Slug; null: not known now.")
    model = serializers.CharField(allow_null=True, help_text="As the client called it.")
    pool = serializers.CharField(allow_null=True)
    endpoint = serializers.CharField(allow_null=True)
    priority_class = serializers.ChoiceField(CLASSES)
    instance = serializers.CharField(help_text="The last one that had it.")
    instances = serializers.ListField(child=serializers.CharField(), help_text="All, in order.")
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(allow_null=True)
    output_tokens = serializers.IntegerField()
    arrived_at = serializers.DateTimeField(allow_null=True)
    # Of one that runs or waits.
    kv_tokens = serializers.IntegerField(
        allow_null=True, help_text="In whole blocks; 0 while it waits; null: it has ended."
    )
    preemptions = serializers.IntegerField(allow_null=True)
    at_unix_s = _number("Of the instance's report; null: it has ended.")
    # Of one that has ended.
    ended_at = serializers.DateTimeField(allow_null=True)
    error_code = serializers.CharField(allow_null=True)
    is_partial = serializers.BooleanField(
        allow_null=True, help_text="It did not come to its end; what it had used is billed."
    )
    cost = serializers.DecimalField(max_digits=18, decimal_places=8, allow_null=True)
    migrations = serializers.IntegerField(allow_null=True)
    replays = serializers.IntegerField(
        allow_null=True, help_text="How often it went on elsewhere after its engine was lost."
    )
    ttft_ms = _number("Arrival to the first token.")
    tpot_ms = _number("Mean time per token after the first.")
    duration_ms = _number()
    queue_ms = _number("Arrival to the engine's first step with it.")
    prefill_ms = _number("From there to the first token.")
    decode_ms = _number("First to last token, without moves.")
    migration_ms = _number("The reader's waits for moves.")
    ttft_target_ms = _number()
    tpot_target_ms = _number()
    is_ttft_met = serializers.BooleanField(allow_null=True)
    is_tpot_met = serializers.BooleanField(allow_null=True)


class RequestListOutput(PageSerializer):
    requests = RequestOutput(many=True)
    left_out = serializers.IntegerField(help_text="Running or waiting ones beyond the limit.")


EMPTY: Final[dict[str, Any]] = dict.fromkeys(RequestOutput().get_fields())
_SAME: Final = [
    name
    for name in EMPTY
    if name not in ("public_id", "state", "tenant", "kv_tokens", "preemptions", "at_unix_s")
]


def record_row(record: RequestRecord) -> dict[str, Any]:
    """Returns an ended request as this API shows it; its tenant must be loaded."""
    return {
        **EMPTY,
        **{name: getattr(record, name) for name in _SAME},
        "public_id": record.request_id,
        "state": record.status,
        "tenant": record.tenant.slug,
    }
