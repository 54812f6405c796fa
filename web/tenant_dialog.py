"""The one shape of the tenants' dialogs: a fragment for the script, a page without it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpResponse, QueryDict
from django.shortcuts import render

from controlplane.audit.models import AuditEntry
from controlplane.errors import VersionConflict
from controlplane.fleet.watch import fleet_watch
from controlplane.tenants.models import Versioned
from web.action_forms import ActionForm
from web.views.access import PageRequest
from web.views.frame import render_page


@dataclass(frozen=True, slots=True)
class Dialog:
    """What stands around the form. `grade` C cannot be taken back: Enter does nothing in it."""

    title: str
    what: str
    verb: str
    back: str
    page: str = "tenants"
    grade: Literal["A", "B", "C"] = "A"
    facts: tuple[tuple[str, str], ...] = ()
    undo: str = ""


def show_dialog(
    request: PageRequest, dialog: Dialog, form: ActionForm, status: int = 200
) -> HttpResponse:
    context = {"dialog": dialog, "form": form, "page": dialog.page, "action": request.path}
    return show_part(request, "tenants/dialog.html", context, status)


def show_part(
    request: PageRequest, part: str, context: dict[str, object], status: int = 200
) -> HttpResponse:
    """Renders a form alone for the script, else inside a page of its own."""
    if getattr(request, "htmx", False):
        response = render(request, part, context)
        response["Cache-Control"] = "no-store"
    else:
        picture = fleet_watch().observer.look()
        response = render_page(
            request, "tenants/dialog_page.html", picture, {**context, "part": part}
        )
    response.status_code = status
    return response


def submit(
    request: PageRequest, dialog: Dialog, form: ActionForm, act: Callable[[], HttpResponse]
) -> HttpResponse:
    """Does what a sent form asks for, or shows it again with what is wrong and the values kept."""
    status = 400
    if form.is_valid():
        try:
            with transaction.atomic():
                return act()
        except ValidationError as problem:
            form.take_errors(problem)
        except VersionConflict as conflict:
            form.add_error(None, conflict_words(dialog.title, conflict))
            renew_version(form, conflict.current)
            status = 409
    return show_dialog(request, dialog, form, status)


def conflict_words(what: str, conflict: VersionConflict) -> str:
    """Says who was faster, and that the values here are still those that were given."""
    named = str(conflict).partition(" was changed")[0]
    last = AuditEntry.objects.filter(object=named).first()
    who = "somebody else" if last is None else f"{last.who} at {last.at:%H:%M:%S} UTC"
    return (
        f"{named} was changed meanwhile by {who}. Your values stand below; send them again to set"
        " them."
    )


def is_so(row: Versioned, values: Mapping[str, Any]) -> bool:
    """Says whether a row already has the values: then the first of two presses has set them, and
    the second is not told of a conflict with it."""
    return all(getattr(row, name) == value for name, value in values.items())


def renew_version(form: ActionForm, version: int) -> None:
    """Lets the next press be one that has seen the other's change."""
    if isinstance(form.data, QueryDict):
        form.data = form.data.copy()
        form.data["version"] = str(version)
