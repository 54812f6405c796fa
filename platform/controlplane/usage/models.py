"""What was used and how well it was served, by the hour; and what it costs.

The ledger is the gateway's RequestRecord, a row a request; these are its sums.
"""

from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone

from controlplane.tenants.models import CLASS_CHOICES


class ModelPrice(models.Model):
    """Price of a model's tokens from a moment on; the newest one that has begun counts."""

    model = models.CharField(max_length=200, help_text="The name that clients use.")
    valid_from = models.DateTimeField(default=timezone.now)
    prompt_per_million = models.DecimalField(
        max_digits=12, decimal_places=4, validators=[MinValueValidator(0)]
    )
    cached_per_million = models.DecimalField(
        max_digits=12, decimal_places=4, validators=[MinValueValidator(0)],
        help_text="Of prompt tokens that were in the prefix cache.",
    )  # fmt: skip
    output_per_million = models.DecimalField(
        max_digits=12, decimal_places=4, validators=[MinValueValidator(0)]
    )
    created_by = models.CharField(max_length=150, blank=True, editable=False)

    class Meta:
        ordering = ["model", "-valid_from"]
        constraints = [
            models.UniqueConstraint(fields=["model", "valid_from"], name="one_price_a_moment")
        ]

    def __str__(self) -> str:
        return f"{self.model} from {self.valid_from:%Y-%m-%d}"


class UsageSums(models.Model):
    """Sums of a tenant's requests that ended within a period."""

    key_id = models.BigIntegerField(help_text="Row id of the key; 0: the playground.")
    model = models.CharField(max_length=200)
    priority_class = models.CharField(max_length=8, choices=CLASS_CHOICES)
    requests = models.PositiveIntegerField()
    failed = models.PositiveIntegerField()
    partial = models.PositiveIntegerField(help_text="Cancelled ones, with what they had used.")
    prompt_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    output_tokens = models.PositiveBigIntegerField()
    cost = models.DecimalField(max_digits=18, decimal_places=8)

    class Meta:
        abstract = True


class UsageHour(UsageSums):
    """Sums of an hour (UTC)."""

    hour = models.DateTimeField(help_text="Its beginning.")
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.CASCADE, related_name="usage_hours", db_constraint=False
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "hour", "model", "priority_class", "key_id"],
                name="one_usage_hour",
            )
        ]
        indexes = [models.Index(fields=["hour"], name="usage_hour")]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.hour:%Y-%m-%d %H}h {self.model}"


class UsageDay(UsageSums):
    """Sums of a day (UTC): the same as of its hours, for questions about weeks and months."""

    day = models.DateTimeField(help_text="Its beginning.")
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.CASCADE, related_name="usage_days", db_constraint=False
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "day", "model", "priority_class", "key_id"],
                name="one_usage_day",
            )
        ]
        indexes = [models.Index(fields=["day"], name="usage_day")]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.day:%Y-%m-%d} {self.model}"


class SloMinutes(models.Model):
    """How many of a tenant's requests met their targets, in five minutes, an hour or a day."""

    at = models.DateTimeField(help_text="Its beginning.")
    length_s = models.PositiveIntegerField(help_text="300, 3600 or 86400.")
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.CASCADE, related_name="slo_minutes", db_constraint=False
    )
    priority_class = models.CharField(max_length=8, choices=CLASS_CHOICES)
    requests = models.PositiveIntegerField(help_text="That had a target and were not cancelled.")
    met = models.PositiveIntegerField(help_text="That met all of their targets.")
    ttft_missed = models.PositiveIntegerField()
    tpot_missed = models.PositiveIntegerField()
    failed = models.PositiveIntegerField(help_text="That failed by our fault: missed too.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "priority_class", "length_s", "at"], name="one_slo_period"
            )
        ]
        indexes = [models.Index(fields=["length_s", "at"], name="slo_period")]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.priority_class} {self.at:%Y-%m-%d %H:%M}"
