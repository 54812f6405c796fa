"""Forms of the admin whose fields are not as Django would guess."""

from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from controlplane.admin_base import ReasonForm
from controlplane.admin_fields import LinesField
from controlplane.tenants.access import Scope


class TenantForm(ReasonForm):
    allowed_models = LinesField(required=False, help_text="One a line; empty: all models.")


class KeyForm(ReasonForm):
    """`new_text`: the key's text after it was made; it stands nowhere else."""

    new_text = ""
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        initial=[Scope.INFERENCE.value],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="inference: /v1; read, manage: /api/v1, within its tenant.",
    )
    allowed_models = LinesField(
        required=False, help_text="One a line; empty: all that the tenant may use."
    )
    allowed_networks = LinesField(
        required=False, help_text="Addresses and networks, one a line; empty: any."
    )

    def changes(self, names: Any) -> dict[str, Any]:
        found = super().changes(names)
        if "scopes" in found and set(found["scopes"]) == set(self.initial.get("scopes", ())):
            del found["scopes"]
        return found
