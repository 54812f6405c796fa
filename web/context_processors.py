"""What the frame of every page needs: the theme, who is there, and what they may open."""

from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from controlplane.tenants.access import Role
from web.navigation import Group, navigation_of
from web.views.access import with_access

THEME_COOKIE: Final = "ferry_theme"
THEMES: Final = (("system", "System"), ("light", "Light"), ("dark", "Dark"))


def theme(request: HttpRequest) -> dict[str, Any]:
    """Reads the cookie, so that no page flashes in the wrong colours."""
    wanted = request.COOKIES.get(THEME_COOKIE, "system")
    return {"theme": wanted if wanted in dict(THEMES) else "system", "themes": THEMES}


def navigation(request: HttpRequest) -> dict[str, Any]:
    """Reads the roles only when a template asks, as the pages without a frame do not.

    `may`: what the person may do with the platform; a button that they may not press is shown
    `aria-disabled`, and the server decides again.
    """

    def groups() -> list[Group]:
        pool = request.GET.get("pool", "") or settings.POOL.pool
        return navigation_of(with_access(request).access, pool)

    def may() -> dict[str, bool]:
        access = with_access(request).access
        return {
            "see_all": access.sees_all,
            "operate": access.allows(Role.OPERATOR),
            "own": access.allows(Role.OWNER),
        }

    return {"navigation": groups, "may": SimpleLazyObject(may)}
