"""What happened to the pool, and who did what to it."""

from typing import Any

from django.db import models
from django.utils import timezone

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


class AuditResult(models.TextChoices):
    """What came of an action."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class AuditEntry(models.Model):
    """Something that a person did or wanted to do here. Rows are added, never changed."""

    at = models.DateTimeField(default=timezone.now)
    who = models.CharField(max_length=150)
    action = models.CharField(max_length=64, help_text="A slug: migrate_request, cancel_move.")
    object = models.CharField(max_length=200, help_text="What it was done to.")
    reason = models.TextField(blank=True, help_text="Why, in the person's words and our numbers.")
    result = models.CharField(max_length=8, choices=AuditResult.choices)
    detail = models.TextField(blank=True, help_text="Why it was refused or failed.")
    request_id = models.CharField(max_length=128, blank=True)
    migration_id = models.CharField(max_length=64, blank=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        ordering = ["-at"]
        indexes = [
            models.Index(fields=["-at"]),
            models.Index(fields=["who", "-at"]),
            models.Index(fields=["action", "-at"]),
        ]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.who}: {self.action} {self.object}: {self.result}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises: PermissionError for a row that is there already."""
        if not self._state.adding:
            raise PermissionError("audit entries are never changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Raises: PermissionError, always."""
        raise PermissionError("audit entries are never deleted")
