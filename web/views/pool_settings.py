"""What the rules of a pool are: engine, instances, band, thresholds, limits, aliases."""

from typing import Any, Final

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from controlplane.errors import VersionConflict
from controlplane.fleet.models import Pool
from controlplane.fleet.pool_selectors import alias_get, pool_get, pool_state, pools_list
from controlplane.fleet.pool_services import alias_remove, alias_set, pool_remove, pool_update
from controlplane.tenants.access import Role
from web import settings_pool
from web.query import words_of
from web.settings_fields import changes, field_errors, read, shown
from web.views.access import PageRequest, needs
from web.views.ledger import see, show

TEXT_MAX_CHARS: Final = 500


@needs(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def settings(request: PageRequest, name: str) -> HttpResponse:
    """Shows a pool's settings; POST shows what would change, and with `save` changes it."""
    if not pools_list().exists():
        # Before the first start has written its pool down.
        return redirect("web:pools")
    pool = pool_get(name)
    if request.method != "POST":
        return _page(request, pool, {})
    request.access.require(Role.OPERATOR)
    texts = {key: str(value).strip()[:TEXT_MAX_CHARS] for key, value in request.POST.items()}
    if "alias" in texts or "alias_remove" in texts:
        return _alias(request, pool, texts)
    fields = settings_pool.fields_of(settings_pool.groups_of(django_settings.POOL))
    values, errors = read(fields, texts)
    form: dict[str, Any] = {"texts": texts, "errors": errors}
    if errors:
        return _page(request, pool, form, 400)
    if "save" not in texts:
        form["changes"] = changes(fields, settings_pool.values_of_pool(pool), values)
        return _page(request, pool, {**form, "is_asked": True})
    try:
        pool_update(
            access=request.access, pool=pool, changes=settings_pool.changes_for(pool, values),
            version=int(texts["version"]) if texts.get("version", "").isdigit() else None,
            reason=texts.get("reason", ""),
        )  # fmt: skip
    except ValidationError as problem:
        found, others = field_errors(settings_pool.unfolded(problem), fields)
        return _page(request, pool, {"texts": texts, "errors": found, "problem": others}, 400)
    except VersionConflict as problem:
        return _page(request, pool_get(name), {"problem": str(problem)}, 409)
    return see("web:pool-settings", name)


@needs(Role.OWNER)
@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: PageRequest, name: str) -> HttpResponse:
    """Shows the dialog, or removes a pool that is off; its name is typed once more."""
    pool = pool_get(name)
    reason = request.POST.get("reason", "").strip()[:TEXT_MAX_CHARS]
    error = ""
    if request.method == "POST":
        if request.POST.get("name", "").strip() != pool.name:
            error = f"Type {pool.name} to remove it."
        elif not reason:
            error = "Say why: it goes into the audit."
        else:
            try:
                pool_remove(access=request.access, pool=pool, reason=reason)
            except ValidationError as problem:
                error = words_of(problem)
            else:
                return see("web:pools")
    context = {"page": "settings", "pool": pool, "reason": reason, "error": error}
    return show(request, "settings/remove_pool.html", context, 400 if error else 200)


def _alias(request: PageRequest, pool: Pool, texts: dict[str, str]) -> HttpResponse:
    removed, added = texts.get("alias_remove", ""), texts.get("alias", "")
    try:
        if removed:
            alias_remove(access=request.access, alias=alias_get(removed))
        else:
            alias_set(access=request.access, alias=added, pool=pool)
    except ValidationError as problem:
        form = {"alias_problem": words_of(problem), "alias_text": added}
        return _page(request, pool, form, 400)
    return see("web:pool-settings", pool.name)


def _page(
    request: PageRequest, pool: Pool, form: dict[str, Any], status: int = 200
) -> HttpResponse:
    access = request.access
    values = settings_pool.values_of_pool(pool)
    texts, errors = form.get("texts"), form.get("errors")
    groups = [
        (group, shown(group.fields, values, errors, texts), access.allows(group.role))
        for group in settings_pool.groups_of(django_settings.POOL)
    ]
    context = {
        **form,
        "page": "settings",
        "pool": pool,
        "pool_name": pool.name,
        "pool_state": pool_state(pool.name) if pool.is_enabled else None,
        "aliases": pool.aliases.all(),
        "groups": groups,
        "version": texts.get("version", "") if texts else pool.version,
        "reason": texts.get("reason", "") if texts else "",
    }
    return show(request, "settings/pool.html", context, status)
