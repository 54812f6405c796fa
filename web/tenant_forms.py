"""The forms of tenants, keys, members and SLOs: how they are filled and read."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError

from controlplane.tenants.access import Role, Scope
from controlplane.tenants.models import CLASS_CHOICES, Slo, Tenant
from engine_pool.types import PriorityClass
from web.action_forms import ActionForm, MomentField, NamesField, VersionedForm

_SCOPE_WORDS: Final = (
    (Scope.INFERENCE.value, "inference: send requests to /v1"),
    (Scope.READ.value, "read: see the tenant's requests, usage and SLOs on /api/v1"),
    (Scope.MANAGE.value, "manage: everything a tenant admin may do on /api/v1"),
)
_ROLE_WORDS: Final = (
    (Role.VIEWER.value, "viewer: sees requests, usage, SLOs, keys' hints"),
    (Role.OPERATOR.value, "operator: and cancels requests, uses the playground"),
    (Role.TENANT_ADMIN.value, "tenant admin: and manages keys and members"),
    (Role.OWNER.value, "owner: and manages owners"),
)
LIMITS: Final = (
    "default_class",
    "highest_class",
    "weight",
    "allowed_models",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
    "monthly_budget",
)
"""What the limits' form sets, in its order."""


class _PolicyFields(forms.Form):
    default_class = forms.ChoiceField(
        label="Class of requests that name none",
        choices=CLASS_CHOICES,
        initial=PriorityClass.NORMAL.value,
    )
    highest_class = forms.ChoiceField(
        label="Highest class",
        choices=CLASS_CHOICES,
        initial=PriorityClass.NORMAL.value,
        help_text="Requests that ask for a higher one get this one.",
    )
    weight = forms.FloatField(
        label="Weight",
        initial="1",
        help_text="Its share within a class beside other tenants: 2 gets twice the tokens of 1.",
    )
    allowed_models = NamesField(label="Models", help_text="One a line. Empty: all.")
    requests_per_minute = forms.IntegerField(label="Requests", required=False)
    tokens_per_minute = forms.IntegerField(
        label="Tokens", required=False, help_text="Prompt and output together."
    )
    concurrency = forms.IntegerField(label="Requests at the same time", required=False)
    monthly_budget = forms.DecimalField(
        label="Budget",
        required=False,
        max_digits=14,
        decimal_places=4,
        help_text="Cost in a calendar month (UTC).",
    )


UNITS: Final = {
    "requests_per_minute": "a minute",
    "tokens_per_minute": "a minute",
    "monthly_budget": "a month",
    "ttft_ms": "ms",
    "tpot_ms": "ms",
    "objective": "%",
    "window_days": "days",
}
"""What stands in a field after its value."""


class TenantForm(_PolicyFields, ActionForm):
    """A new tenant."""

    name = forms.CharField(label="Name", max_length=100)
    slug = forms.SlugField(
        label="Short name",
        max_length=50,
        help_text="In addresses, metrics and records; cannot be changed later.",
    )
    field_order = ("name", "slug", *LIMITS, "reason")


class LimitsForm(_PolicyFields, VersionedForm):
    """What a tenant may use."""

    field_order = (*LIMITS, "version", "reason")

    @classmethod
    def filled(cls, tenant: Tenant) -> "LimitsForm":
        values = {name: _plain(getattr(tenant, name)) for name in LIMITS}
        return cls(initial={**values, "version": tenant.version})


class KeyForm(ActionForm):
    """A new key. `once`: one form makes one key, however often it is sent."""

    name = forms.CharField(
        label="Name", max_length=100, help_text="What it is for, or where it is."
    )
    scopes = forms.MultipleChoiceField(
        label="May be used for", choices=_SCOPE_WORDS, widget=forms.CheckboxSelectMultiple,
        initial=[Scope.INFERENCE.value],
    )  # fmt: skip
    allowed_models = NamesField(label="Models", help_text="One a line. Empty: all of the tenant's.")
    allowed_networks = NamesField(
        label="From addresses",
        help_text="IP addresses or networks, such as 10.0.0.0/8. Empty: any.",
    )
    expires_at = MomentField(label="Expires", required=False, help_text="UTC. Empty: never.")
    once = forms.CharField(widget=forms.HiddenInput, max_length=64, required=False)


class KeyChangeForm(KeyForm, VersionedForm):
    """A change of a key."""


class RotateForm(ActionForm):
    """A new secret for a key."""

    old_until = MomentField(
        label="The old secret works until",
        help_text="UTC; at most 90 days from now. Both secrets work until then.",
    )
    once = forms.CharField(widget=forms.HiddenInput, max_length=64)


class ConfirmForm(ActionForm):
    """Something that cannot be taken back: its name is typed, and a reason given."""

    confirm = forms.CharField(
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"})
    )
    field_order = ("confirm", "reason")

    def __init__(self, *args: Any, expected: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._expected = expected
        self.fields["confirm"].label = f"Type {expected} to go on"
        self.fields["reason"].required = True
        self.fields["reason"].error_messages["required"] = "Say why: it goes into the audit log."

    def clean_confirm(self) -> str:
        given = str(self.cleaned_data["confirm"]).strip()
        if given != self._expected:
            raise ValidationError(f"Expected {self._expected}.")
        return given


class RoleForm(ActionForm):
    """Another role for a member."""

    role = forms.ChoiceField(label="Role", choices=_ROLE_WORDS, widget=forms.RadioSelect)


class MemberForm(RoleForm):
    """A new member."""

    username = forms.CharField(
        label="Username",
        max_length=150,
        help_text="Of somebody who has an account here; accounts are made in the admin.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
    )
    field_order = ("username", "role", "reason")


class SloForm(ActionForm):
    """What is promised in one class. The objective is given in percent."""

    ttft_ms = forms.FloatField(
        label="Time to the first token", required=False, help_text="Empty: no promise."
    )
    tpot_ms = forms.FloatField(
        label="Time per token after it", required=False, help_text="Mean. Empty: no promise."
    )
    objective = forms.FloatField(
        label="Objective", initial="99", help_text="Of the requests meet all targets."
    )
    window_days = forms.IntegerField(label="Over the last", initial=28)
    version = forms.IntegerField(widget=forms.HiddenInput, required=False)

    @classmethod
    def filled(cls, slo: Slo | None, version: int | None) -> "SloForm":
        """`version`: of the tenant's own SLO; None: it has none."""
        if slo is None:
            return cls()
        return cls(
            initial={
                "ttft_ms": slo.ttft_ms,
                "tpot_ms": slo.tpot_ms,
                "objective": round(slo.objective * 100, 6),
                "window_days": slo.window_days,
                "version": version,
            }
        )

    @property
    def values(self) -> dict[str, Any]:
        values = super().values
        return {**values, "objective": round(values["objective"] / 100, 8)}


def rotation_end(now: datetime, hours: int = 24) -> str:
    """Returns what stands in the rotation's field at first."""
    return (now + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M")


def _plain(value: Any) -> Any:
    """Returns a number without the zeros that nobody typed."""
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    return f"{value:g}" if isinstance(value, float) else value
