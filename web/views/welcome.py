"""The first steps of a new installation: four, each with its check. They can be left and
resumed."""

import json
import uuid
from dataclasses import dataclass
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from controlplane.audit.models import AuditEntry
from controlplane.fleet.watch import fleet_watch
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Role
from controlplane.tenants.first_login import SETUP, USERNAME
from controlplane.tenants.models import ApiKey
from controlplane.tenants.services import key_create, tenant_create
from web.action_forms import ActionForm
from web.once import once
from web.views.access import PageRequest, needs
from web.views.ledger import see, show
from web.views.tenant_keys import show_secret

LEFT = "welcome_left"
"""In the session: the person does not want to be led here any more."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Which of them are done."""

    password: bool
    pool: bool
    key: bool
    request: bool

    @property
    def done(self) -> int:
        return sum((self.password, self.pool, self.key, self.request))

    @property
    def is_complete(self) -> bool:
        return self.done == 4


class FirstForm(ActionForm):
    """The first tenant and its key."""

    name = forms.CharField(label="Team", max_length=100, initial="My team")
    slug = forms.SlugField(label="Short name", max_length=50, initial="my-team")
    key = forms.CharField(label="Key", max_length=100, initial="First key of the team")
    once = forms.CharField(widget=forms.HiddenInput, max_length=64)


def steps_of(request: PageRequest) -> Steps:
    """Checks each step anew. The password's costs a digest, as long as it is the first one."""
    return Steps(
        password=_has_own_password(request.user),
        pool=_serving() > 0,
        key=_has_key(),
        request=_first_request() is not None,
    )


def wants_welcome(request: PageRequest) -> bool:
    """Says whether the first page is this one: nobody has used a key yet, and the person has not
    left these steps."""
    may = request.access.allows(Role.OPERATOR)
    return may and not request.session.get(LEFT) and _first_request() is None


@needs(Role.OPERATOR)
@require_safe
def welcome(request: PageRequest) -> HttpResponse:
    """Shows the steps; a script asks for them again until the first request has come."""
    return _page(request, FirstForm(initial=_initial()))


@needs(Role.OPERATOR)
@require_POST
def first_key(request: PageRequest) -> HttpResponse:
    """Makes the first tenant and its key, and shows the secret, once."""
    form = FirstForm(request.POST)
    if form.is_valid():
        values = form.cleaned_data
        try:
            with transaction.atomic():
                once(request, values["once"])
                tenant = tenant_create(
                    access=request.access, name=values["name"], slug=values["slug"]
                )
                key, secret = key_create(access=request.access, tenant=tenant, name=values["key"])
                return show_secret(request, key, secret, "is made", reverse("web:welcome"))
        except ValidationError as problem:
            form.take_errors(problem)
    return _page(request, form, 400)


@needs(Role.OPERATOR)
@require_POST
def leave(request: PageRequest) -> HttpResponse:
    """Goes to the cluster, and does not come here by itself again in this session."""
    request.session[LEFT] = True
    return see("web:cluster")


def _page(request: PageRequest, form: FirstForm, status: int = 200) -> HttpResponse:
    watch = fleet_watch()
    steps = steps_of(request)
    context: dict[str, Any] = {
        "page": "welcome",
        "steps": steps,
        "form": form,
        "serving": _serving(),
        "first": _first_request(),
        "base_url": request.build_absolute_uri("/v1"),
        "model": watch.model or "MODEL",
    }
    if getattr(request, "htmx", False):
        response = render(request, "welcome/steps.html", context)
        response["Cache-Control"] = "no-store"
        return response
    return show(request, "welcome/page.html", context, status)


def _initial() -> dict[str, str]:
    return {"once": uuid.uuid4().hex}


def _serving() -> int:
    rows = fleet_watch().observer.look().rows.values()
    return sum(row.state == "serving" for row in rows)


def _has_key() -> bool:
    """A key that somebody has made, or that is in use: the installation's own first one may lie
    unread in its file."""
    live = ApiKey.objects.filter(revoked_at=None)
    return live.exclude(created_by=SETUP.who).exists() or live.exclude(last_used_at=None).exists()


def _first_request() -> RequestRecord | None:
    return RequestRecord.objects.filter(key_id__gt=0).order_by("arrived_at").first()


def _has_own_password(user: Any) -> bool:
    """Says whether the first password, which lies in a file, is no longer the person's."""
    assert isinstance(user, AbstractBaseUser), "logged in"
    name = user.get_username()
    if AuditEntry.objects.filter(action="password_change", who=name).exists() or name != USERNAME:
        return True
    try:
        first = json.loads((settings.VAR_DIR / "first-login.json").read_text())
    except (OSError, ValueError):
        return True
    return not user.check_password(str(first.get("password", "")))
