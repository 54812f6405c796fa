"""At which hours which bounds are in force: a pool's schedule, and one window of it."""

from typing import Any, Final

from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.errors import VersionConflict
from controlplane.fleet.models import Pool
from controlplane.fleet.pool_selectors import pool_get
from controlplane.scaling.models import ScalingWindow
from controlplane.scaling.selectors import scaling_now, windows_list
from controlplane.scaling.services import window_add, window_remove, window_update
from controlplane.tenants.access import Role
from web import scaling_words, settings_windows
from web.settings_fields import shown
from web.views.access import PageRequest, needs
from web.views.ledger import see, show

TEXT_MAX_CHARS: Final = 500


@needs(Role.VIEWER, to_post=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def windows(request: PageRequest, name: str) -> HttpResponse:
    """Lists a pool's windows; POST adds one."""
    pool = pool_get(name)
    if request.method != "POST":
        return _page(request, pool, None, {})
    return _save(request, pool, None)


@needs(Role.VIEWER, to_post=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def window(request: PageRequest, name: str, number: int) -> HttpResponse:
    """Shows one window in the form; POST changes it, or with `remove` removes it."""
    pool = pool_get(name)
    found = windows_list(access=request.access, pool=pool.name).filter(pk=number).first()
    if found is None:
        raise Http404("There is no such window.")
    if request.method != "POST":
        return _page(request, pool, found, {})
    if "remove" in request.POST:
        reason = request.POST.get("reason", "").strip()[:TEXT_MAX_CHARS]
        window_remove(access=request.access, window=found, reason=reason)
        return see("web:pool-windows", pool.name)
    return _save(request, pool, found)


def _save(request: PageRequest, pool: Pool, found: ScalingWindow | None) -> HttpResponse:
    texts = {key: str(value).strip()[:TEXT_MAX_CHARS] for key, value in request.POST.items()}
    values, errors = settings_windows.read_window(texts, request.POST.getlist("day"))
    form: dict[str, Any] = {"texts": texts, "errors": errors, "weekdays": values.get("weekdays", 0)}
    if errors:
        return _page(request, pool, found, form, 400)
    reason = texts.get("reason", "")
    try:
        if found is None:
            window_add(access=request.access, pool=pool, changes=values, reason=reason)
        else:
            version = int(texts["version"]) if texts.get("version", "").isdigit() else None
            window_update(
                access=request.access, window=found, changes=values, version=version, reason=reason
            )
    except ValidationError as problem:
        form["errors"], form["problem"] = settings_windows.told(problem)
        return _page(request, pool, found, form, 400)
    except VersionConflict as problem:
        return _page(request, pool, found, {"problem": str(problem)}, 409)
    return see("web:pool-windows", pool.name)


def _page(
    request: PageRequest,
    pool: Pool,
    found: ScalingWindow | None,
    form: dict[str, Any],
    status: int = 200,
) -> HttpResponse:
    rows = windows_list(access=request.access, pool=pool.name)
    now = scaling_now(access=request.access, pool=pool, now=timezone.now())
    texts = form.get("texts") or settings_windows.texts_of(found)
    errors = form.get("errors") or {}
    new_days = sum(1 << number for number in settings_windows.EMPTY_DAYS)
    weekdays = form.get("weekdays", found.weekdays if found is not None else new_days)
    context = {
        "page": "settings",
        "pool": pool,
        "pool_name": pool.name,
        "now": now,
        "rows": [scaling_words.window_row(row, now.bounds) for row in rows],
        "window": found,
        "fields": shown(settings_windows.FIELDS, {}, errors, texts),
        "hours": [(key, texts.get(key, ""), errors.get(key, "")) for key in settings_windows.HOURS],
        "days": settings_windows.days_of(weekdays),
        "days_error": errors.get("weekdays", ""),
        "problem": form.get("problem", ""),
        "reason": texts.get("reason", ""),
        "version": found.version if found is not None else "",
    }
    return show(request, "settings/windows.html", context, status)
