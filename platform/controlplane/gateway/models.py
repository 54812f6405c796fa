"""What is kept of the requests."""

from decimal import Decimal

from django.db import models

from engine_pool.types import PriorityClass


class RequestStatus(models.TextChoices):
    """How a request ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled", "Cancelled: the client left"
    DETACHED = "detached", "Detached: the client left, it went on to its end"
    FAILED = "failed"


MISSED = models.Q(is_ttft_met=False) | models.Q(is_tpot_met=False)
"""The requests that missed a target or failed by our fault; a partial index has just these."""

REPLAYED = models.Q(replays__gt=0)
"""The requests that lost an engine and went on; few."""


class RequestRecord(models.Model):
    """One request to the API, written once, when it has ended."""

    request_id = models.CharField(max_length=64, unique=True)
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.CASCADE, related_name="requests", db_constraint=False
    )
    key_id = models.BigIntegerField(default=0, help_text="Row id of the key; 0: the playground.")
    client_request_id = models.CharField(
        max_length=128, blank=True, help_text="X-Request-Id of the call."
    )
    pool = models.CharField(max_length=32, default="default")
    model = models.CharField(max_length=200, blank=True, help_text="As clients call it.")
    endpoint = models.CharField(max_length=16)
    priority_class = models.CharField(
        max_length=8, choices=[(c.value, c.value) for c in PriorityClass]
    )
    status = models.CharField(max_length=16, choices=RequestStatus.choices)
    error_code = models.CharField(max_length=64, blank=True)
    instance = models.CharField(max_length=64, blank=True)
    instances = models.JSONField(default=list, help_text="All that had it, in order.")
    migrations = models.PositiveSmallIntegerField(default=0, help_text="Moves while it ran.")
    replays = models.PositiveSmallIntegerField(
        default=0, help_text="How often it went on elsewhere after its engine was lost."
    )
    replay_notes = models.JSONField(
        default=list, help_text="Each: from, to, at_token, gap_ms, at_ms, reason, replays."
    )
    dispatch_reason = models.CharField(max_length=255, blank=True)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField()
    is_partial = models.BooleanField(
        default=False, help_text="It did not come to its end; what it had used counts."
    )
    cost = models.DecimalField(max_digits=18, decimal_places=8, default=Decimal(0))
    arrived_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    ttft_ms = models.FloatField(null=True, help_text="Arrival to first token; none without tokens.")
    tpot_ms = models.FloatField(null=True, help_text="Mean time per token after the first.")
    duration_ms = models.FloatField()
    queue_ms = models.FloatField(null=True, help_text="Arrival to the engine's first step with it.")
    prefill_ms = models.FloatField(null=True, help_text="From there to the first token.")
    decode_ms = models.FloatField(null=True, help_text="First to last token, without moves.")
    migration_ms = models.FloatField(default=0.0, help_text="The reader's waits for moves.")
    ttft_target_ms = models.FloatField(null=True)
    tpot_target_ms = models.FloatField(null=True)
    is_ttft_met = models.BooleanField(null=True, help_text="None: no target, or cancelled before.")
    is_tpot_met = models.BooleanField(null=True)
    is_rolled = models.BooleanField(
        default=False, editable=False, help_text="It is in the hours' sums (usage/rollups.py)."
    )

    class Meta:
        # One for each filter of the list, in its order; partial ones hold few rows.
        indexes = [
            models.Index(fields=["-arrived_at"]),
            models.Index(fields=["tenant", "-arrived_at"]),
            models.Index(fields=["status", "-arrived_at"], name="request_status"),
            models.Index(fields=["tenant", "status", "-arrived_at"], name="request_tenant_status"),
            models.Index(fields=["key_id", "-arrived_at"], name="request_key"),
            models.Index(fields=["model", "-arrived_at"], name="request_model"),
            models.Index(fields=["instance", "-arrived_at"], name="request_instance"),
            models.Index(fields=["client_request_id"], name="request_client_id"),
            models.Index(
                fields=["ended_at"], condition=models.Q(is_rolled=False), name="request_unrolled"
            ),
            models.Index(
                fields=["tenant", "ended_at"],
                condition=models.Q(is_rolled=False),
                name="request_tenant_unrolled",
            ),
            models.Index(fields=["-arrived_at"], condition=MISSED, name="request_missed"),
            models.Index(fields=["-arrived_at"], condition=REPLAYED, name="request_replayed"),
            models.Index(
                fields=["tenant", "priority_class", "-arrived_at"],
                condition=MISSED,
                name="request_tenant_missed",
            ),
        ]

    def __str__(self) -> str:
        return self.request_id
