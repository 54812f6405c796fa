"""What is kept of the requests."""

from django.db import models

from engine_pool.types import PriorityClass


class RequestStatus(models.TextChoices):
    """How a request ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled", "Cancelled: the client left"
    DETACHED = "detached", "Detached: the client left and may resume"
    FAILED = "failed"


class RequestRecord(models.Model):
    """One request to the API, written once, when it has ended."""

    request_id = models.CharField(max_length=64, unique=True)
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.CASCADE, related_name="requests", db_constraint=False
    )
    endpoint = models.CharField(max_length=16)
    priority_class = models.CharField(
        max_length=8, choices=[(c.value, c.value) for c in PriorityClass]
    )
    status = models.CharField(max_length=16, choices=RequestStatus.choices)
    error_code = models.CharField(max_length=64, blank=True)
    instance = models.CharField(max_length=64, blank=True)
    instances = models.JSONField(default=list, help_text="All that had it, in order.")
    migrations = models.PositiveSmallIntegerField(default=0, help_text="Moves while it ran.")
    dispatch_reason = models.CharField(max_length=255, blank=True)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField()
    arrived_at = models.DateTimeField()
    ttft_ms = models.FloatField(null=True, help_text="Arrival to first token; none without tokens.")
    tpot_ms = models.FloatField(null=True, help_text="Mean time per token after the first.")
    duration_ms = models.FloatField()

    class Meta:
        indexes = [
            models.Index(fields=["-arrived_at"]),
            models.Index(fields=["tenant", "-arrived_at"]),
        ]

    def __str__(self) -> str:
        return self.request_id
