"""A tenant's API keys. A secret is in one answer, that of the press that made it, and nowhere
else."""

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.errors import NotVisible
from controlplane.tenants.access import Role
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.selectors import key_get, keys_list
from controlplane.tenants.services import key_create, key_revoke, key_rotate, key_update
from web.once import once
from web.tenant_dialog import Dialog, is_so, show_dialog, show_part, submit
from web.tenant_forms import ConfirmForm, KeyChangeForm, KeyForm, RotateForm, rotation_end
from web.tenant_words import key_state, names
from web.views.access import PageRequest, tenant_view
from web.views.ledger import see
from web.views.tenants import show_tab


@tenant_view(Role.VIEWER)
@require_safe
def keys(request: PageRequest, tenant: Tenant) -> HttpResponse:
    """Lists the keys, without secrets; revoked and expired ones stand last."""
    now = timezone.now()
    rows = [(key, *key_state(key, now)) for key in keys_list(access=request.access, tenant=tenant)]
    rows.sort(key=lambda row: row[1] in ("revoked", "expired"))
    context = {
        "page": "tenant-keys",
        "rows": rows,
        "now": now,
        "live": sum(state in ("live", "rotating") for _, state, _ in rows),
    }
    return show_tab(request, tenant, "keys", "tenants/keys.html", context)


@tenant_view(Role.TENANT_ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def create(request: PageRequest, tenant: Tenant) -> HttpResponse:
    """Shows the form, or makes a key and shows its secret, once."""
    dialog = Dialog(
        title=f"New key for {tenant.name}",
        what="Its secret is shown once, after this. Only a digest of it is kept.",
        verb="Create the key",
        back=_keys_url(tenant),
        page="tenant-keys",
    )
    if request.method != "POST":
        return show_dialog(request, dialog, KeyForm(initial={"once": uuid.uuid4().hex}))
    form = KeyForm(request.POST)

    def act() -> HttpResponse:
        once(request, form.cleaned_data["once"])
        key, secret = key_create(
            access=request.access, tenant=tenant, reason=form.why, **form.values
        )
        return show_secret(request, key, secret, "is made")

    return submit(request, dialog, form, act)


@tenant_view(Role.TENANT_ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: PageRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    key = _key_of(request, tenant, public_id)
    dialog = Dialog(
        title=f"Change {key.name}?",
        what="Scopes, models and addresses hold within a second. Its secret stays.",
        verb="Save",
        back=_keys_url(tenant),
        page="tenant-keys",
        facts=(("Key", key.hint), ("State", key_state(key, timezone.now())[0])),
    )
    if request.method != "POST":
        fields = ("name", "scopes", "allowed_models", "allowed_networks", "expires_at", "version")
        return show_dialog(
            request, dialog, KeyChangeForm(initial={name: getattr(key, name) for name in fields})
        )
    form = KeyChangeForm(request.POST)

    def act() -> HttpResponse:
        if not is_so(key, form.values):
            key_update(
                access=request.access, key=key, changes=form.values,
                version=form.cleaned_data["version"], reason=form.why,
            )  # fmt: skip
        return see("web:tenant-keys", tenant.slug)

    return submit(request, dialog, form, act)


@tenant_view(Role.TENANT_ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def rotate(request: PageRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Gives a key a new secret beside the old one, and shows it, once."""
    key, now = _key_of(request, tenant, public_id), timezone.now()
    facts = [("Key", key.hint), ("Last used", _used(key))]
    if key.old_until is not None and key.old_until > now:
        facts.append(("An older secret", f"sk-...{key.old_last4} ends now"))
    dialog = Dialog(
        title=f"Rotate {key.name}?",
        what="It gets a new secret, shown once. Until the date below both work, so that clients can"
        " change over without a failed request.",
        verb="Make the new secret",
        back=_keys_url(tenant),
        page="tenant-keys",
        grade="B",
        facts=tuple(facts),
    )
    if request.method != "POST":
        initial = {"old_until": rotation_end(now), "once": uuid.uuid4().hex}
        return show_dialog(request, dialog, RotateForm(initial=initial))
    form = RotateForm(request.POST)

    def act() -> HttpResponse:
        once(request, form.cleaned_data["once"])
        changed, secret = key_rotate(
            access=request.access, key=key, old_until=form.cleaned_data["old_until"],
            reason=form.why,
        )  # fmt: skip
        return show_secret(request, changed, secret, "has a new secret")

    return submit(request, dialog, form, act)


@tenant_view(Role.TENANT_ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def revoke(request: PageRequest, tenant: Tenant, public_id: str) -> HttpResponse:
    """Ends a key for good, after its name was typed."""
    key = _key_of(request, tenant, public_id)
    dialog = Dialog(
        title=f"Revoke {key.name}?",
        what="Requests with it get 401 within a second, on every web process; with both secrets,"
        " if it is being rotated. What runs goes on to its end.",
        verb=f"Revoke {key.name}",
        back=_keys_url(tenant),
        page="tenant-keys",
        grade="C",
        facts=(("Key", key.hint), ("Last used", _used(key)), ("Scopes", names(key.scopes, "none"))),
        undo="There is no undo: make a new key.",
    )
    if request.method != "POST":
        return show_dialog(request, dialog, ConfirmForm(expected=key.name))
    form = ConfirmForm(request.POST, expected=key.name)

    def act() -> HttpResponse:
        key_revoke(access=request.access, key=key, reason=form.why)
        return see("web:tenant-keys", tenant.slug)

    return submit(request, dialog, form, act)


def show_secret(
    request: PageRequest, key: ApiKey, secret: str, what: str, back: str = ""
) -> HttpResponse:
    """Answers with the secret: this answer alone has it, and no cache keeps it."""
    context: dict[str, Any] = {
        "page": "tenant-keys",
        "key": key,
        "secret": secret,
        "what": what,
        "back": back or _keys_url(key.tenant),
    }
    return show_part(request, "tenants/secret.html", context)


def _key_of(request: PageRequest, tenant: Tenant, public_id: str) -> ApiKey:
    key = key_get(access=request.access, public_id=public_id)
    if key.tenant.pk != tenant.pk:
        raise NotVisible(f"{tenant.name} has no such key.")
    return key


def _keys_url(tenant: Tenant) -> str:
    return reverse("web:tenant-keys", args=[tenant.slug])


def _used(key: ApiKey) -> str:
    return "never" if key.last_used_at is None else f"{key.last_used_at:%d %b %Y %H:%M} UTC"
