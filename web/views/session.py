"""Login, logout, the choice of theme, and the icon for tools that guess its address."""

from django.contrib.auth.views import LoginView as DjangoLoginView
from django.contrib.auth.views import LogoutView as DjangoLogoutView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.templatetags.static import static
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from web.context_processors import THEME_COOKIE, THEMES

THEME_KEPT_S = 365 * 24 * 3600


class LoginView(DjangoLoginView):
    template_name = "session/login.html"
    redirect_authenticated_user = True


class LogoutView(DjangoLogoutView):
    next_page = "/login/"


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Keeps the wanted theme in a cookie, and goes back to where the reader was."""
    wanted = request.POST.get("theme", "")
    target = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(target, {request.get_host()}, request.is_secure()):
        target = "/"
    response = HttpResponseRedirect(target)
    if wanted in dict(THEMES):
        response.set_cookie(
            THEME_COOKIE,
            wanted,
            max_age=THEME_KEPT_S,
            samesite="Lax",
            httponly=True,
            secure=request.is_secure(),
        )
    return response


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect(static("img/favicon.svg"))
