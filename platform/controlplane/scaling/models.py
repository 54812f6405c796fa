"""What the scaling loop remembers, what it decided and why, and when which bounds are in force."""

from django.core.validators import MaxValueValidator
from django.db import models

from controlplane.fleet.models import Pool, ScalingMode
from controlplane.tenants.models import Versioned


class DecisionKind(models.TextChoices):
    GROW = "grow"
    """Instances were added, or a stopped one is wanted again."""
    SHRINK = "shrink"
    """An instance is to be drained and stopped."""
    UNDRAIN = "undrain"
    """A drain of the loop's own was taken back."""
    REFUSED = "refused"
    """A change was due, but a bound, a cool-down or the check of what is left forbade it."""
    HOLD = "hold"
    """Reports were missing, stale or no numbers: nothing changes on a part of the picture."""
    HEARTBEAT = "heartbeat"
    """Nothing to do; one a minute, so that silence is told from rest."""


class ScalingState(models.Model):
    """What the loop remembers of one pool between two checks. The row is the fence: whoever holds
    an older lease cannot change it, nor anything in the same transaction."""

    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, related_name="scaling_state")
    fence = models.PositiveBigIntegerField(
        default=0, help_text="Number of the newest lease that has decided here."
    )
    tick = models.PositiveBigIntegerField(default=0, help_text="Checks so far.")
    checked_at = models.DateTimeField(null=True)
    memory = models.JSONField(default=dict, help_text="policy.scaling.ScalingState.")

    def __str__(self) -> str:
        return f"{self.pool}: check {self.tick}, fence {self.fence}"


class ScalingDecision(models.Model):
    """One check that changed something, refused to, could not see, or a heartbeat."""

    pool = models.CharField(max_length=32)
    at = models.DateTimeField()
    tick = models.PositiveBigIntegerField()
    fence = models.PositiveBigIntegerField()
    mode = models.CharField(max_length=8, choices=ScalingMode.choices)
    kind = models.CharField(max_length=12, choices=DecisionKind.choices)
    signal = models.CharField(
        max_length=16, help_text="What it followed: freeness, ttft, schedule, demand, idle, bounds."
    )
    instance = models.CharField(
        max_length=64, blank=True, help_text="Drained, undrained, woken, or the first one added."
    )
    add = models.PositiveIntegerField(default=0)
    instances_before = models.PositiveIntegerField(help_text="Wanted before: serving and starting.")
    instances_after = models.PositiveIntegerField()
    serving = models.PositiveIntegerField(default=0)
    starting = models.PositiveIntegerField(default=0)
    draining = models.PositiveIntegerField(default=0)
    silent = models.PositiveIntegerField(default=0, help_text="Without a fresh report.")
    average_steps = models.FloatField(
        null=True, help_text="Average freeness; null: nothing runs, or nobody knows."
    )
    is_idle = models.BooleanField(default=False, help_text="Nothing ran or waited.")
    low_steps = models.FloatField()
    high_steps = models.FloatField()
    ttft_attainment = models.FloatField(null=True)
    is_applied = models.BooleanField(default=False, help_text="False in advise mode.")
    reason = models.TextField()

    class Meta:
        ordering = ["-at", "-id"]
        constraints = [
            # Two workers that decide the same check would break this: never two decisions.
            models.UniqueConstraint(fields=["pool", "tick"], name="one_decision_a_check")
        ]
        indexes = [
            models.Index(fields=["pool", "-at"]),
            models.Index(fields=["pool", "kind", "-at"]),
        ]

    def __str__(self) -> str:
        return f"{self.pool} {self.kind}: {self.reason}"


class ScalingWindow(Versioned):
    """Bounds that are in force at certain hours, instead of the pool's own: a schedule."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="scaling_windows")
    name = models.CharField(max_length=64)
    weekdays = models.PositiveSmallIntegerField(
        default=127, validators=[MaxValueValidator(127)],
        help_text="Bits, Monday 1 to Sunday 64: the days on which it begins.",
    )  # fmt: skip
    begins = models.TimeField()
    ends = models.TimeField(help_text="Before `begins`: on the next day.")
    timezone = models.CharField(max_length=64, default="UTC", help_text="An IANA name.")
    min_instances = models.PositiveIntegerField(validators=[MaxValueValidator(512)])
    max_instances = models.PositiveIntegerField(
        null=True, blank=True, validators=[MaxValueValidator(512)]
    )
    is_enabled = models.BooleanField(default=True)

    class Meta:
        ordering = ["pool", "begins", "name"]
        constraints = [models.UniqueConstraint(fields=["pool", "name"], name="one_window_a_name")]

    def __str__(self) -> str:
        return f"{self.pool}: {self.name}"
