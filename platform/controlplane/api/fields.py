"""Fields that serializers of this API share."""

import math
from datetime import UTC, datetime
from typing import Any, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

INT_MAX: Final = 2_147_483_647
"""Of a database's integer."""
BIGINT_MAX: Final = 9_007_199_254_740_991
"""What JSON's readers take without a loss (2^53 - 1)."""
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
REASON_MAX_CHARS: Final = 500


class Number(serializers.FloatField):
    """A float; the framework's takes "nan" and "inf" too, which no answer could hold."""

    def to_internal_value(self, data: Any) -> float:
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            self.fail("invalid")
        return value


@extend_schema_field({"type": "string", "format": "date-time"})
class Time(serializers.DateTimeField):
    """A time within two centuries, so that hours can be added to it; without a zone it is UTC."""

    def to_internal_value(self, value: Any) -> datetime:
        found = super().to_internal_value(value)
        if not EARLIEST <= found <= LATEST:
            raise serializers.ValidationError(f"must lie between {EARLIEST:%Y} and {LATEST:%Y}")
        return found


@extend_schema_field({"type": "string", "pattern": r"^\d{2}:\d{2}(:\d{2}(\.\d+)?)?$"})
class TimeOfDay(serializers.TimeField):
    """A time of day without a zone. The schemas' own format "time" has one."""


def reason() -> serializers.CharField:
    """Returns the field that every change takes."""
    return serializers.CharField(
        max_length=REASON_MAX_CHARS, allow_blank=True, default="", help_text="For the audit."
    )


def names(help_text: str, **more: Any) -> serializers.ListField:
    """Returns a field for a short list of names."""
    return serializers.ListField(
        child=serializers.CharField(max_length=200), max_length=100, help_text=help_text, **more
    )
