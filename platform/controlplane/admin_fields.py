"""Form fields of the admin for lists, which Django would show as JSON."""

from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminTextareaWidget


class LinesField(forms.CharField):
    """A list of short texts, one a line."""

    widget = UnfoldAdminTextareaWidget

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return [line.strip() for line in (text or "").splitlines() if line.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.to_python(data) != (initial or []))
