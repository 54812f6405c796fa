"""What is kept of calls that must not happen twice."""

from django.db import models
from django.utils import timezone


class IdempotentCall(models.Model):
    """A POST with an Idempotency-Key: claimed before it is done, with its answer afterwards."""

    actor = models.CharField(max_length=160, help_text="Who sent it; keys of others never meet it.")
    key_digest = models.CharField(max_length=64, help_text="Of the Idempotency-Key (SHA-256).")
    request_digest = models.CharField(max_length=64, help_text="Of method, path and body.")
    claimed_at = models.DateTimeField(default=timezone.now)
    claim = models.CharField(max_length=32, help_text="Of the one who does it, until it is done.")
    status = models.PositiveSmallIntegerField(null=True, help_text="Empty: it is being done.")
    answer = models.JSONField(null=True, help_text="The body, without secrets.")
    headers = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["actor", "key_digest"], name="one_call_a_key")
        ]
        indexes = [models.Index(fields=["claimed_at"], name="idempotent_claimed")]

    def __str__(self) -> str:
        return f"{self.actor}: {self.status or 'under way'}"
