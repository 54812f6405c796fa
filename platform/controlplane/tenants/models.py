"""Who may use the pools: tenants, their members, keys and SLOs, and the priority classes."""

import ipaddress
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone

from controlplane.tenants.access import Role, Scope
from engine_pool.types import PriorityClass

CLASS_CHOICES = [(c.value, c.value) for c in PriorityClass]
NAMES_MAX = 100
"""Models, scopes or networks that one tenant or key may name."""


class TenantState(models.TextChoices):
    """Whether a tenant's requests are taken."""

    ACTIVE = "active"
    BLOCKED = "blocked", "Blocked: its requests are refused, its pages work"


def _check_names(value: Any) -> None:
    """Raises: ValidationError unless the value is a list of short texts."""
    is_list = isinstance(value, list) and len(value) <= NAMES_MAX
    if not is_list or not all(isinstance(v, str) and 0 < len(v) <= 200 for v in value):
        raise ValidationError(f"must be a list of at most {NAMES_MAX} names")


def _check_scopes(value: Any) -> None:
    _check_names(value)
    unknown = [v for v in value if v not in {s.value for s in Scope}]
    if unknown or not value:
        known = ", ".join(Scope)
        raise ValidationError(f"must be some of {known}")


def _check_networks(value: Any) -> None:
    _check_names(value)
    for text in value:
        try:
            ipaddress.ip_network(text)
        except ValueError:
            raise ValidationError(f"{text!r} is no IP address or network (10.0.0.0/8)") from None


class Versioned(models.Model):
    """A row that two people may want to change at once: `version` grows with each change."""

    version = models.PositiveIntegerField(default=1, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        abstract = True


class Tenant(Versioned):
    """A customer or team; owns keys, and is what requests are counted for."""

    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=50, unique=True)
    state = models.CharField(max_length=8, choices=TenantState.choices, default=TenantState.ACTIVE)
    allowed_models = models.JSONField(
        default=list, blank=True, validators=[_check_names], help_text="Empty: all models."
    )
    default_class = models.CharField(
        max_length=8, choices=CLASS_CHOICES, default=PriorityClass.NORMAL.value,
        help_text="Of requests that do not say.",
    )  # fmt: skip
    highest_class = models.CharField(
        max_length=8, choices=CLASS_CHOICES, default=PriorityClass.NORMAL.value,
        help_text="Requests that ask for a higher one get this one.",
    )  # fmt: skip
    weight = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(0.001), MaxValueValidator(1000)],
        help_text="Its share within a class beside other tenants: 2 gets twice the tokens of 1.",
    )
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty: no limit."
    )
    tokens_per_minute = models.PositiveBigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)],
        help_text="Prompt and output tokens together; empty: no limit.",
    )  # fmt: skip
    concurrency = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)],
        help_text="Requests at the same time; empty: no limit.",
    )  # fmt: skip
    monthly_budget = models.DecimalField(
        null=True, blank=True, max_digits=14, decimal_places=4, validators=[MinValueValidator(0)],
        help_text="Cost in a calendar month (UTC); empty: no limit.",
    )  # fmt: skip

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def is_active(self) -> bool:
        return self.state == TenantState.ACTIVE

    def clean(self) -> None:
        """Raises: ValidationError for a default class above the highest one."""
        highest = PriorityClass(self.highest_class)
        if PriorityClass(self.default_class).rank < highest.rank:
            raise ValidationError({"default_class": "must not be above the highest class"})


class Membership(Versioned):
    """A person's role in a tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships"
    )
    role = models.CharField(max_length=16, choices=[(r.value, r.value) for r in Role])

    class Meta:
        ordering = ["tenant", "user"]
        constraints = [models.UniqueConstraint(fields=["tenant", "user"], name="one_role_a_member")]

    def __str__(self) -> str:
        return f"{self.user}: {self.role} of {self.tenant}"


def _inference() -> list[str]:
    return [Scope.INFERENCE.value]


class ApiKey(Versioned):
    """A key, without its secret: only digests are kept, two of them while it is rotated."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="keys")
    name = models.CharField(max_length=100)
    public_id = models.CharField(max_length=16, unique=True, editable=False)
    secret_digest = models.CharField(max_length=64, editable=False)
    last4 = models.CharField(max_length=4, editable=False)
    old_secret_digest = models.CharField(max_length=64, editable=False, blank=True)
    old_last4 = models.CharField(max_length=4, editable=False, blank=True)
    old_until = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="How long the old secret still works."
    )
    scopes = models.JSONField(default=_inference, validators=[_check_scopes])
    allowed_models = models.JSONField(
        default=list, blank=True, validators=[_check_names],
        help_text="Empty: all that the tenant may use.",
    )  # fmt: skip
    allowed_networks = models.JSONField(
        default=list, blank=True, validators=[_check_networks],
        help_text="IP addresses and networks that it may come from; empty: any.",
    )  # fmt: skip
    created_by = models.CharField(max_length=150, blank=True, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.hint})"

    @property
    def hint(self) -> str:
        """How a key is shown once its secret is gone from sight."""
        return f"sk-...{self.last4}"

    @property
    def is_live(self) -> bool:
        """It is neither revoked nor expired."""
        is_past = self.expires_at is not None and self.expires_at <= timezone.now()
        return self.revoked_at is None and not is_past


class ClassSettings(Versioned):
    """How a priority class is treated, in all pools. A schema migration makes the rows."""

    name = models.CharField(max_length=8, choices=CLASS_CHOICES, unique=True)
    headroom_tokens = models.PositiveIntegerField(
        null=True, blank=True,
        help_text="KV cache kept free on an instance that serves the class, in tokens.",
    )  # fmt: skip
    headroom_share = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0.0), MaxValueValidator(0.95)],
        help_text="The same as a share of the instance's KV cache; one of both, or neither.",
    )  # fmt: skip
    ageing_s = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0.0)],
        help_text="A request that waits so long counts as one class higher; 0: never;"
        " empty: the pool's setting.",
    )  # fmt: skip
    is_preemptible = models.BooleanField(
        default=True, help_text="Its running requests may make room for a higher class."
    )

    class Meta:
        verbose_name_plural = "class settings"

    def __str__(self) -> str:
        return self.name

    @property
    def rank(self) -> int:
        """0 is the most urgent."""
        return PriorityClass(self.name).rank

    def clean(self) -> None:
        """Raises: ValidationError when both kinds of headroom are given."""
        if self.headroom_tokens is not None and self.headroom_share is not None:
            raise ValidationError({"headroom_share": "give tokens or a share, not both"})


class Slo(Versioned):
    """What is promised: to one tenant in one class, or (no tenant) to all that have none."""

    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, related_name="slos", null=True, blank=True,
        help_text="Empty: all tenants without one of their own.",
    )  # fmt: skip
    priority_class = models.CharField(max_length=8, choices=CLASS_CHOICES)
    ttft_ms = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(1.0)],
        help_text="Longest time to the first token.",
    )  # fmt: skip
    tpot_ms = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0.1)],
        help_text="Longest mean time per token after the first.",
    )  # fmt: skip
    objective = models.FloatField(
        default=0.99, validators=[MinValueValidator(0.5), MaxValueValidator(0.9999)],
        help_text="Share of requests that meet all targets.",
    )  # fmt: skip
    window_days = models.PositiveSmallIntegerField(
        default=28, validators=[MinValueValidator(1), MaxValueValidator(90)]
    )

    class Meta:
        ordering = ["tenant", "priority_class"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "priority_class"],
                condition=models.Q(tenant__isnull=False),
                name="one_slo_a_class",
            ),
            models.UniqueConstraint(
                fields=["priority_class"],
                condition=models.Q(tenant__isnull=True),
                name="one_slo_for_everybody",
            ),
        ]

    def __str__(self) -> str:
        whose = self.tenant.name if self.tenant is not None else "everybody"
        return f"{whose}, {self.priority_class}"

    def clean(self) -> None:
        """Raises: ValidationError without a target."""
        if self.ttft_ms is None and self.tpot_ms is None:
            raise ValidationError({"ttft_ms": "give a target for TTFT, for TPOT, or for both"})
