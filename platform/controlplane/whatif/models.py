"""What was simulated, for whom, and what came of it. A row is also its place in the queue."""

import uuid

from django.db import models
from django.utils import timezone

from controlplane.whatif.limits import NAME_MAX_CHARS


class RunState(models.TextChoices):
    """Where a run is; the last three are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS = (RunState.DONE, RunState.FAILED, RunState.CANCELLED)
GOING_ON = (RunState.QUEUED, RunState.RUNNING)


def make_run_id() -> str:
    """Returns a new id: short enough to say, long enough never to meet again."""
    return uuid.uuid4().hex[:12]


class SimulationRun(models.Model):
    """One scenario, alone or beside a second one of the same load, and the simulator's report.

    Only services.py changes the state, from one named state to the next.
    """

    run_id = models.SlugField(max_length=12, unique=True, default=make_run_id, editable=False)
    name = models.CharField(max_length=NAME_MAX_CHARS)
    who = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(
        max_length=12, choices=RunState.choices, default=RunState.QUEUED, editable=False
    )
    progress = models.FloatField(default=0.0, help_text="0 to 1, over both scenarios.")
    scenario = models.JSONField(help_text="What would be.")
    baseline = models.JSONField(null=True, help_text="What it is compared with.")
    baseline_label = models.CharField(max_length=40, blank=True)
    report = models.JSONField(null=True)
    baseline_report = models.JSONField(null=True)
    ttft_p99_ms = models.FloatField(null=True, help_text="From the report, for the list.")
    moves = models.PositiveIntegerField(null=True, help_text="From the report, for the list.")
    error = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True, help_text="The worker's last sign of life.")
    cancel_wanted_by = models.CharField(max_length=150, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["-created_at"]),
            models.Index(fields=["state", "created_at"]),
        ]
        constraints = [
            # Two workers that look at the same moment cannot both begin.
            models.UniqueConstraint(
                fields=["state"], condition=models.Q(state="running"), name="one_run_at_a_time"
            )
        ]
        verbose_name = "what-if run"

    def __str__(self) -> str:
        return self.name

    @property
    def is_ended(self) -> bool:
        return self.state in ENDS
