"""Who did what, with what effect. Rows are added, never changed."""

from typing import Any

from django.db import models
from django.utils import timezone


class AuditResult(models.TextChoices):
    """What came of an action."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class AuditEntry(models.Model):
    """Something that a person or a key did or wanted to do here."""

    at = models.DateTimeField(default=timezone.now)
    who = models.CharField(max_length=150, help_text="A user's name, or key:<public id>.")
    role = models.CharField(max_length=16, blank=True, help_text="By which it was allowed.")
    action = models.CharField(max_length=64, help_text="A slug: migrate_request, key_revoke.")
    object = models.CharField(max_length=200, help_text="What it was done to.")
    tenant = models.CharField(
        max_length=50, blank=True, help_text="The tenant's slug; empty: the installation's own."
    )
    reason = models.TextField(blank=True, help_text="Why, in the person's words and our numbers.")
    result = models.CharField(max_length=8, choices=AuditResult.choices)
    detail = models.TextField(blank=True, help_text="Why it was refused or failed.")
    request_id = models.CharField(
        max_length=128, blank=True, help_text="The request to a model that it was done to."
    )
    http_request_id = models.CharField(
        max_length=128, blank=True, help_text="X-Request-Id of the call that did it."
    )
    migration_id = models.CharField(max_length=64, blank=True)
    before = models.JSONField(null=True, help_text="What it changed, without secrets.")
    after = models.JSONField(null=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["-at"], name="audit_at"),
            models.Index(fields=["who", "-at"], name="audit_who"),
            models.Index(fields=["action", "-at"], name="audit_action"),
            models.Index(fields=["tenant", "-at"], name="audit_tenant"),
            models.Index(fields=["object", "-at"], name="audit_object"),
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
