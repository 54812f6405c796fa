"""What the frame of every page needs: the theme, and the state of the installation."""

from typing import Any, Final

from django.http import HttpRequest

THEME_COOKIE: Final = "ferry_theme"
THEMES: Final = (("system", "System"), ("light", "Light"), ("dark", "Dark"))


def theme(request: HttpRequest) -> dict[str, Any]:
    """Reads the cookie, so that no page flashes in the wrong colours."""
    wanted = request.COOKIES.get(THEME_COOKIE, "system")
    return {"theme": wanted if wanted in dict(THEMES) else "system", "themes": THEMES}
