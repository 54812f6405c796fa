"""How each priority class is treated, in all pools."""

from typing import Any, Final

from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponse
from django.views.decorators.http import require_http_methods

from controlplane.errors import VersionConflict
from controlplane.tenants.access import Role
from controlplane.tenants.changes import values_of
from controlplane.tenants.models import ClassSettings
from controlplane.tenants.services import CLASS_FIELDS, class_update
from web.settings_fields import changes, field_errors, read, shown
from web.settings_known import CLASS_FIELDS as FIELDS
from web.views.access import PageRequest, needs
from web.views.ledger import see, show

REASON_MAX_CHARS: Final = 500


@needs(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def classes(request: PageRequest) -> HttpResponse:
    """Shows the classes; POST shows what would change, and with `save` changes it."""
    if request.method != "POST":
        return _page(request, {})
    request.access.require(Role.OPERATOR)
    row = ClassSettings.objects.filter(name=request.POST.get("name", "")).first()
    if row is None:
        raise Http404("There is no such class.")
    texts = {name: str(value)[:REASON_MAX_CHARS] for name, value in request.POST.items()}
    values, errors = read(FIELDS, texts)
    state: dict[str, Any] = {"texts": texts, "errors": errors}
    if errors:
        return _page(request, {row.name: state}, 400)
    version = int(texts["version"]) if texts.get("version", "").isdigit() else None
    if "save" not in texts:
        state["changes"] = changes(FIELDS, values_of(row, CLASS_FIELDS), values)
        state["is_asked"] = True
        return _page(request, {row.name: state})
    try:
        class_update(
            access=request.access, settings=row, changes=values, version=version,
            reason=texts.get("reason", ""),
        )  # fmt: skip
    except ValidationError as problem:
        state["errors"], state["problem"] = field_errors(problem, FIELDS)
        return _page(request, {row.name: state}, 400)
    except VersionConflict as problem:
        return _page(request, {row.name: {"problem": str(problem)}}, 409)
    return see("web:classes")


def _page(
    request: PageRequest, states: dict[str, dict[str, Any]], status: int = 200
) -> HttpResponse:
    rows = sorted(ClassSettings.objects.all(), key=lambda row: row.rank)
    forms = [_form(row, states.get(row.name, {})) for row in rows]
    return show(request, "settings/classes.html", {"page": "settings", "forms": forms}, status)


def _form(row: ClassSettings, state: dict[str, Any]) -> dict[str, Any]:
    texts = state.get("texts")
    values = values_of(row, CLASS_FIELDS)
    return {
        **state,
        "row": row,
        "version": texts.get("version", "") if texts else row.version,
        "reason": texts.get("reason", "") if texts else "",
        "fields": shown(FIELDS, values, state.get("errors"), texts, prefix=row.name),
    }
