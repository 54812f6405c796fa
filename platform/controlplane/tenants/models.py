"""Who may use the API."""

from django.db import models
from django.utils import timezone

from engine_pool.types import PriorityClass


class Tenant(models.Model):
    """A customer or team; owns keys, and is what requests are counted for."""

    name = models.CharField(max_length=100, unique=True)
    slug = models.SlugField(max_length=50, unique=True)
    priority_class = models.CharField(
        max_length=8,
        choices=[(c.value, c.value) for c in PriorityClass],
        default=PriorityClass.NORMAL.value,
        help_text="The highest class its requests may have, and the one they have by default.",
    )
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ApiKey(models.Model):
    """A key, without its secret: only a digest of that is kept."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="keys")
    name = models.CharField(max_length=100)
    public_id = models.CharField(max_length=16, unique=True, editable=False)
    secret_digest = models.CharField(max_length=64, editable=False)
    last4 = models.CharField(max_length=4, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
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
