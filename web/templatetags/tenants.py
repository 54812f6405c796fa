"""Fields, bars and states of the tenants' pages."""

from typing import Any

from django import forms, template
from django.forms import BoundField
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from web.tenant_forms import UNITS
from web.tenant_words import Meter

register = template.Library()

STATE_ICONS = {
    "active": "serving",
    "live": "serving",
    "rotating": "starting",
    "blocked": "cordoned",
    "expired": "stopped",
    "revoked": "stopped",
}
"""Blocked and revoked are wanted states, so none looks like a fault."""


@register.filter
def is_group(field: BoundField) -> bool:
    """Says whether a field is several boxes with a common heading."""
    return isinstance(field.field.widget, forms.CheckboxSelectMultiple | forms.RadioSelect)


@register.filter
def unit(field: BoundField) -> str:
    return UNITS.get(field.name, "")


@register.simple_tag
def control(field: BoundField) -> SafeString:
    """Returns the field's own element, tied to its error and its help."""
    about = [f"{field.auto_id}-error"] if field.errors else []
    about += [f"{field.auto_id}-help"] if field.help_text else []
    attrs: dict[str, Any] = {"class": "input"}
    if about:
        attrs["aria-describedby"] = " ".join(about)
    if field.errors:
        attrs["aria-invalid"] = "true"
    if isinstance(field.field.widget, forms.NumberInput):
        attrs["step"] = "any"
    return field.as_widget(attrs=attrs)


@register.simple_tag
def state_badge(state: str) -> SafeString:
    """Returns a state as a shape and a word."""
    return format_html(
        '<span class="badge" data-tenant="{}">'
        '<svg class="icon" viewBox="0 0 12 12" aria-hidden="true">'
        '<use href="#ic-state-{}"/></svg>{}</span>',
        state,
        STATE_ICONS.get(state, "stopped"),
        state.capitalize(),
    )


@register.simple_tag
def meter_bar(meter: Meter) -> SafeString | str:
    """Returns used and reserved (hatched) of a limit, as an SVG without a viewBox; nothing where
    there is no limit."""
    used, reserved = meter.widths
    if meter.limit is None:
        return ""
    if meter.used is None:
        return mark_safe('<svg class="meter unknown" aria-hidden="true"></svg>')
    return format_html(
        '<svg class="meter" data-tone="{}" role="img" aria-label="{}: {}">'
        '<rect class="track" width="100%" height="100%" rx="2"/>'
        '<rect class="used" width="{}%" height="100%"/>'
        '<rect class="reserved" x="{}%" width="{}%" height="100%"/></svg>',
        meter.tone,
        meter.label,
        meter.words,
        used,
        used,
        reserved,
    )


@register.simple_tag(takes_context=True)
def operator_only(context: template.Context) -> SafeString | str:
    """Returns what a button for operators alone has for others; the server decides again."""
    if context["may"]["operate"]:
        return ""
    return format_html(' aria-disabled="true" title="{}"', "Needs the operator role")
