"""Forms whose change goes into the audit with a reason, and fields that several of them have.

What a value may be is decided by the models, when a service saves; what a service refuses finds its
field here (`take_errors`).
"""

import re
from typing import Any, Final

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

REASON_MAX_CHARS: Final = 500


class NamesField(forms.CharField):
    """A list of names, one a line or separated by commas."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.Textarea(attrs={"rows": 2, "spellcheck": "false"})
        super().__init__(required=False, widget=widget, max_length=8000, **kwargs)

    def to_python(self, value: Any) -> Any:
        return [name for name in re.split(r"[\s,]+", value or "") if name]

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def run_validators(self, value: Any) -> None:
        """The model's validators look at the list; those of a text do not fit."""


class MomentField(forms.DateTimeField):
    """A time in UTC, as browsers' own field for it sends it."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
        super().__init__(
            input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"], widget=widget, **kwargs
        )


class ActionForm(forms.Form):
    """A form whose change goes into the audit with a reason."""

    reason = forms.CharField(
        label="Reason",
        required=False,
        max_length=REASON_MAX_CHARS,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text="Goes into the audit log.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"] = self.fields.pop("reason")

    @property
    def values(self) -> dict[str, Any]:
        """What was given, without reason, version and confirmation."""
        others = ("reason", "version", "once", "confirm")
        return {name: v for name, v in self.cleaned_data.items() if name not in others}

    @property
    def why(self) -> str:
        return str(self.cleaned_data.get("reason", ""))

    def take_errors(self, problem: ValidationError) -> None:
        """Puts what a service refused under its fields; the rest on top, with the field's name."""
        if not hasattr(problem, "error_dict"):
            self.add_error(None, problem)
            return
        for name, words in problem.message_dict.items():
            if name in self.fields:
                self.add_error(name, [_sentence(text) for text in words])
            else:
                said = "" if name == NON_FIELD_ERRORS else f"{name}: "
                self.add_error(None, [f"{said}{text}" for text in words])


class VersionedForm(ActionForm):
    """A change of a row that somebody else may be changing."""

    version = forms.IntegerField(widget=forms.HiddenInput)


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith(".") else f"{said}."
