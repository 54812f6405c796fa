"""What tokens of each model cost, from when on, and what they cost before."""

from datetime import UTC, datetime
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.fleet.models import ModelAlias, Pool
from controlplane.tenants.access import Role
from controlplane.usage.models import ModelPrice
from controlplane.usage.prices import price_set
from web.query import Query, words_of
from web.settings_fields import field_errors, read, shown
from web.settings_known import PRICE_FIELDS
from web.views.access import PageRequest, needs
from web.views.ledger import see, show

SHOWN_MAX: Final = 500
"""Rows of the history; older ones are counted."""
TEXT_MAX_CHARS: Final = 500


@needs(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def prices(request: PageRequest) -> HttpResponse:
    """Shows prices now, before and to come; POST sets one."""
    if request.method != "POST":
        return _page(request, {"model": request.GET.get("model", "")[:200]}, {})
    request.access.require(Role.OWNER)
    texts = {name: str(value).strip()[:TEXT_MAX_CHARS] for name, value in request.POST.items()}
    values, errors = read(PRICE_FIELDS, texts)
    for field in PRICE_FIELDS:
        errors |= {} if field.name in values else {field.name: errors.get(field.name, "is missing")}
    if not texts.get("model"):
        errors["model"] = "must not be empty"
    try:
        valid_from = Query.of(texts, ["valid_from"]).moment("valid_from") or timezone.now()
    except ValidationError as problem:
        errors["valid_from"] = words_of(problem).partition(": ")[2]
        return _page(request, texts, errors, 400)
    if errors:
        return _page(request, texts, errors, 400)
    try:
        price_set(
            access=request.access, model=texts["model"], valid_from=valid_from,
            reason=texts.get("reason", ""), **values,
        )  # fmt: skip
    except ValidationError as problem:
        errors, others = field_errors(problem, PRICE_FIELDS)
        return _page(request, texts, {**errors, "": others}, 400)
    return see("web:prices")


def _page(
    request: PageRequest, texts: dict[str, str], errors: dict[str, str], status: int = 200
) -> HttpResponse:
    now = timezone.now()
    rows = list(ModelPrice.objects.order_by("model", "-valid_from")[: SHOWN_MAX + 1])
    typed = texts if request.method == "POST" else None
    context: dict[str, Any] = {
        "page": "settings",
        "rows": [(row, _state(row, rows, now)) for row in rows[:SHOWN_MAX]],
        "is_cut": len(rows) > SHOWN_MAX,
        "fields": shown(PRICE_FIELDS, {}, errors, typed),
        "texts": texts,
        "errors": errors,
        "problem": errors.get("", ""),
        "now_text": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M}",
        "models": _models(rows),
    }
    return show(request, "settings/prices.html", context, status)


def _state(row: ModelPrice, rows: list[ModelPrice], now: datetime) -> str:
    """Returns `now`, `later` or `before`."""
    if row.valid_from > now:
        return "later"
    begun = [r.valid_from for r in rows if r.model == row.model and r.valid_from <= now]
    return "now" if row.valid_from == max(begun) else "before"


def _models(rows: list[ModelPrice]) -> list[str]:
    """Returns the names under which clients ask for models."""
    names = {*Pool.objects.values_list("served_model_name", flat=True)}
    names |= {*ModelAlias.objects.values_list("alias", flat=True)}
    return sorted(names | {row.model for row in rows})
