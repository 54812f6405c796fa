"""What happened to the pools, and which there should be."""

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from controlplane.tenants.models import Versioned
from engine_pool.policy.wishes import Leftover, WantedState
from migration.report import MoveState


class FleetEventRecord(models.Model):
    """One event, copied from the store, which keeps only the newest."""

    entry_id = models.CharField(max_length=64, unique=True, help_text="Of the store's stream.")
    at = models.DateTimeField()
    kind = models.CharField(max_length=64)
    severity = models.CharField(max_length=8)
    instance = models.CharField(max_length=64, blank=True)
    headline = models.CharField(max_length=255)
    detail = models.TextField(blank=True)

    class Meta:
        ordering = ["-at"]
        indexes = [
            models.Index(fields=["-at"]),
            models.Index(fields=["instance", "-at"]),
        ]

    def __str__(self) -> str:
        return self.headline


class MigrationRecord(models.Model):
    """One move of one request: written when it is asked for here, and when it has ended.

    While it goes on, the live view knows more (move_selectors.py).
    """

    migration_id = models.CharField(max_length=64, unique=True)
    request_id = models.CharField(max_length=128)
    pool = models.CharField(max_length=64)
    source = models.CharField(max_length=64)
    destination = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=[(s.value, s.value) for s in MoveState])
    asked_by = models.CharField(max_length=200)
    reason = models.TextField(blank=True)
    abort_code = models.CharField(max_length=32, blank=True)
    abort_reason = models.TextField(blank=True)
    tenant = models.CharField(max_length=64, blank=True)
    priority_class = models.CharField(max_length=8, blank=True)
    is_queued = models.BooleanField(default=False, help_text="It waited: moved without a copy.")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    downtime_ms = models.FloatField(
        null=True, help_text="Last token at the source to the first at the destination."
    )
    total_ms = models.FloatField(null=True, help_text="Start to end.")
    tokens_at_start = models.PositiveIntegerField(default=0, help_text="Tokens with KV.")
    sent_bytes = models.PositiveBigIntegerField(default=0)
    stages = models.PositiveIntegerField(default=0, help_text="Copies, the last one included.")
    report = models.JSONField(help_text="The whole last MoveReport.")

    class Meta:
        ordering = ["-started_at"]
        indexes = [
            models.Index(fields=["-started_at"]),
            models.Index(fields=["state", "-started_at"]),
            models.Index(fields=["request_id"]),
            models.Index(fields=["source", "-started_at"]),
            models.Index(fields=["destination", "-started_at"]),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}: {self.source} -> {self.destination}"


class ScalingMode(models.TextChoices):
    OFF = "off"
    ADVISE = "advise"
    ACT = "act"


TIMES_OF_SCALING = (
    "grow_after_s",
    "shrink_after_s",
    "grow_cooldown_s",
    "shrink_cooldown_s",
    "zero_after_s",
)
SCALING_TIME_MAX_S = 7 * 86_400.0
"""Who waits for longer wants the loop off."""

WANTED_CHOICES = [(w.value, w.value) for w in WantedState]
LEFTOVER_CHOICES = [(x.value, x.value) for x in Leftover]


class Wish(Versioned):
    """What somebody wants of one thing; without a row it serves."""

    wanted = models.CharField(max_length=8, choices=WANTED_CHOICES)
    by = models.CharField(max_length=200, help_text='A user\'s name, or "scaling".')
    reason = models.CharField(max_length=500, blank=True)
    since = models.DateTimeField(help_text="When this was first wanted.")
    deadline = models.DateTimeField(null=True, blank=True)
    leftover = models.CharField(
        max_length=8, choices=LEFTOVER_CHOICES, default=Leftover.WAIT.value,
        help_text="What happens at the deadline to requests that are still there.",
    )  # fmt: skip
    renew_before = models.DateTimeField(
        null=True, blank=True, help_text="An engine started before this is replaced by a new one."
    )

    class Meta:
        abstract = True


class Pool(Versioned):
    """The instances of one model, wanted; what they do now, the live view knows.

    The first one is made from the environment when an installation is set up.
    """

    name = models.SlugField(max_length=32, unique=True)
    model = models.CharField(
        max_length=500, blank=True, help_text="A folder or a hub id; empty: the default model."
    )
    served_model_name = models.CharField(
        max_length=200, unique=True, help_text="The name that clients use."
    )
    is_enabled = models.BooleanField(default=True, help_text="Off: its instances are stopped.")
    instances = models.PositiveIntegerField(
        default=1, validators=[MaxValueValidator(512)], help_text="Wanted now."
    )
    min_instances = models.PositiveIntegerField(default=1, validators=[MaxValueValidator(512)])
    max_instances = models.PositiveIntegerField(default=8, validators=[MaxValueValidator(512)])
    engine_settings = models.JSONField(
        default=dict, blank=True,
        help_text="Fields of PoolConfig that differ from the environment: kv_cache_gib, ...",
    )  # fmt: skip
    band_low_steps = models.FloatField(
        default=160.0, help_text="Average freeness under which the pool grows, tokens a request."
    )
    band_high_steps = models.FloatField(
        default=960.0, help_text="Average freeness over which it shrinks."
    )
    rebalance_below_steps = models.FloatField(
        default=48.0, help_text="An instance less free than this gives requests away."
    )
    rebalance_above_steps = models.FloatField(
        default=48.0, help_text="An instance freer than this takes them."
    )
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="Of all tenants together; empty: no limit."
    )
    tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    concurrency = models.PositiveIntegerField(null=True, blank=True)
    is_rolling = models.BooleanField(
        default=True,
        help_text="Instances with other engine settings are replaced one by one, without a cut.",
    )
    scaling_mode = models.CharField(
        max_length=8, choices=ScalingMode.choices, default=ScalingMode.OFF,
        help_text="advise: decisions are stored and shown, nobody acts on them.",
    )  # fmt: skip
    grow_after_s = models.FloatField(
        default=0.0, validators=[MinValueValidator(0.0)],
        help_text="How long the average must have been under the band.",
    )  # fmt: skip
    shrink_after_s = models.FloatField(default=60.0, validators=[MinValueValidator(0.0)])
    grow_cooldown_s = models.FloatField(
        default=0.0, validators=[MinValueValidator(0.0)],
        help_text="After a growth, until the next one.",
    )  # fmt: skip
    shrink_cooldown_s = models.FloatField(
        default=120.0, validators=[MinValueValidator(0.0)],
        help_text="After any change, until an instance is drained.",
    )  # fmt: skip
    ttft_attainment_floor = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text="Share of requests within their TTFT target, queue included, under which the "
        "pool grows; empty: this signal is off.",
    )  # fmt: skip
    zero_after_s = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(1.0)],
        help_text="Idle for so long, the last instance is stopped as well; empty: never. Needs "
        "min_instances 0.",
    )  # fmt: skip
    hold_s = models.FloatField(
        default=60.0, validators=[MinValueValidator(0.0), MaxValueValidator(600.0)],
        help_text="How long a request waits for the first instance of a pool at zero.",
    )  # fmt: skip
    hold_max = models.PositiveIntegerField(
        default=100, validators=[MaxValueValidator(10_000)],
        help_text="Requests that wait so at the same time, in one web process.",
    )  # fmt: skip

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raises: ValidationError for settings that contradict each other, naming one of them."""
        if not self.min_instances <= self.max_instances:
            raise ValidationError({"max_instances": "must not be below min_instances"})
        if not self.min_instances <= self.instances <= self.max_instances:
            raise ValidationError({"instances": "must lie between min_instances and max_instances"})
        if not self.band_low_steps < self.band_high_steps:
            raise ValidationError({"band_high_steps": "must be above band_low_steps"})
        if not self.rebalance_below_steps <= self.rebalance_above_steps:
            raise ValidationError(
                {"rebalance_above_steps": "must not be below rebalance_below_steps"}
            )
        for name in TIMES_OF_SCALING:
            value_s = getattr(self, name)
            if value_s is not None and not value_s <= SCALING_TIME_MAX_S:
                raise ValidationError({name: f"must be at most {SCALING_TIME_MAX_S:.0f}, a week"})
        if self.zero_after_s is not None and self.min_instances > 0:
            raise ValidationError({"zero_after_s": "needs min_instances 0"})
        if self.hold_s > 0 and not self.hold_max:
            raise ValidationError({"hold_max": "must be at least 1 where requests are held"})


class WantedInstance(Wish):
    """What is wanted of an instance of a pool."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="wanted_instances")
    instance = models.CharField(max_length=64, unique=True)

    class Meta:
        ordering = ["instance"]

    def __str__(self) -> str:
        return self.instance


class WantedNode(Wish):
    """What is wanted of all instances of a node, those that are placed there later included."""

    node = models.CharField(max_length=255, unique=True)

    class Meta:
        ordering = ["node"]

    def __str__(self) -> str:
        return self.node


class ModelAlias(Versioned):
    """Another name under which clients may ask for a pool's model."""

    alias = models.CharField(max_length=200, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="aliases")

    class Meta:
        ordering = ["alias"]
        verbose_name_plural = "model aliases"

    def __str__(self) -> str:
        return f"{self.alias} -> {self.pool}"
