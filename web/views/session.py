"""Login, logout, password, the first page by role, the theme, and the icon for tools that guess
its address."""

from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.views import LoginView as DjangoLoginView
from django.contrib.auth.views import LogoutView as DjangoLogoutView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.templatetags.static import static
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.tenants.models import Tenant
from controlplane.tenants.passwords import password_change
from web.context_processors import THEME_COOKIE, THEMES
from web.views.access import PageRequest, signed_in, with_access
from web.views.welcome import wants_welcome

THEME_KEPT_S = 365 * 24 * 3600


class LoginView(DjangoLoginView):
    template_name = "session/login.html"
    redirect_authenticated_user = True


class LogoutView(DjangoLogoutView):
    next_page = "/login/"


@signed_in
@require_safe
def home(request: PageRequest) -> HttpResponse:
    """Goes to the first page by role: the first steps until a request has come, the cluster, the
    person's tenant, or their tenants."""
    if wants_welcome(request):
        return HttpResponseRedirect(reverse("web:welcome"))
    if request.access.sees_all:
        return HttpResponseRedirect(reverse("web:cluster"))
    slugs = list(
        Tenant.objects.filter(pk__in=list(request.access.tenants)).values_list("slug", flat=True)
    )
    if len(slugs) == 1:
        return HttpResponseRedirect(reverse("web:tenant", args=[slugs[0]]))
    return HttpResponseRedirect(reverse("web:tenants"))


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    """Changes the person's own password; this session goes on, their other ones end."""
    user = request.user
    assert isinstance(user, AbstractBaseUser), "logged in"
    form = PasswordChangeForm(user, request.POST if request.method == "POST" else None)
    is_done = form.is_valid()
    if is_done:
        chosen = form.cleaned_data["new_password1"]
        password_change(access=with_access(request).access, user=user, password=chosen)
        update_session_auth_hash(request, user)
    status = 400 if form.is_bound and not is_done else 200
    context = {"form": form, "is_done": is_done}
    response = render(request, "session/password.html", context, status=status)
    response["Cache-Control"] = "no-store"
    return response


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
