"""All pools, and a new one."""

from typing import Any, Final

from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.views.decorators.http import require_http_methods

from controlplane.fleet.pool_selectors import pool_state, pools_list
from controlplane.fleet.pool_services import pool_create
from controlplane.tenants.access import Role
from web.settings_fields import field_errors, read, shown
from web.settings_pool import NEW_POOL, unfolded
from web.views.access import PageRequest, needs
from web.views.ledger import see, show

TEXT_MAX_CHARS: Final = 500
NEW: Final = {"instances": 1, "is_enabled": True}


@needs(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def pools(request: PageRequest) -> HttpResponse:
    """Lists the pools; POST makes one and goes to its settings."""
    if request.method != "POST":
        return _page(request, {})
    request.access.require(Role.OWNER)
    texts = {key: str(value).strip()[:TEXT_MAX_CHARS] for key, value in request.POST.items()}
    values, errors = read(NEW_POOL, texts)
    form: dict[str, Any] = {"texts": texts, "errors": errors}
    if errors:
        return _page(request, form, 400)
    # A pool's bounds hold from its beginning; they are widened on its page.
    wanted = values.get("instances", 1)
    values |= {"min_instances": min(1, wanted), "max_instances": max(8, wanted)}
    try:
        pool = pool_create(access=request.access, changes=values, reason=texts.get("reason", ""))
    except ValidationError as problem:
        form["errors"], form["problem"] = field_errors(unfolded(problem), NEW_POOL)
        return _page(request, form, 400)
    return see("web:pool-settings", pool.name)


def _page(request: PageRequest, form: dict[str, Any], status: int = 200) -> HttpResponse:
    texts = form.get("texts")
    rows = list(pools_list())
    context = {
        **form,
        "page": "settings",
        "pools": [(pool, pool_state(pool.name) if pool.is_enabled else None) for pool in rows],
        "fields": shown(NEW_POOL, NEW, form.get("errors"), texts),
        "reason": texts.get("reason", "") if texts else "",
    }
    return show(request, "settings/pools.html", context, status)
