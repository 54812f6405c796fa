"""What happened to the pool."""

from django.db import models


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
