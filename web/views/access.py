"""Who may see and do what on the pages: every view stands behind one of these.

`needs` asks for a role of the platform, `tenant_view` for one in the tenant that the address names,
`signed_in` for any role at all. Each asks for a login first, gives the view `request.access`, and
turns what a service refuses into a page: 404 for what the person may not see, 403 for a role that
does not reach, 409 for a change that came too late.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, cast

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render

from controlplane.errors import NotAllowed, NotVisible, VersionConflict
from controlplane.middleware import request_id_of
from controlplane.tenants.access import Access, Role, access_of_user
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import tenant_get

P = ParamSpec("P")


class PageRequest(HttpRequest):
    """A request of somebody who is logged in."""

    access: Access


Page = Callable[Concatenate[PageRequest, P], HttpResponseBase]
TenantPage = Callable[Concatenate[PageRequest, Tenant, P], HttpResponseBase]
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]

NO_ROLE = "Your account has no role yet"


def needs(role: Role, to_post: Role | None = None) -> Callable[[Page[P]], View[P]]:
    """Lets in who has the platform's role; members of tenants get a 404.

    `to_post`: the role for POST, where it is another one.
    """

    def decorate(view: Page[P]) -> View[P]:
        @wraps(view)
        def allowed(request: PageRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            request.access.require(_role(request, role, to_post))
            return view(request, *args, **kwargs)

        return signed_in(allowed)

    return decorate


def tenant_view(
    role: Role, to_post: Role | None = None
) -> Callable[[TenantPage[P]], Callable[..., HttpResponseBase]]:
    """Lets in who has the role in the tenant of the address (`slug`); gives the view the tenant.

    Who sees nothing of the tenant gets a 404, as for a tenant that is not there.
    """

    def decorate(view: TenantPage[P]) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def allowed(
            request: PageRequest, /, slug: str, *args: P.args, **kwargs: P.kwargs
        ) -> HttpResponseBase:
            tenant = tenant_get(access=request.access, slug=slug)
            request.access.require(_role(request, role, to_post), tenant.pk)
            return view(request, tenant, *args, **kwargs)

        return signed_in(allowed)

    return decorate


def signed_in(view: Page[P]) -> View[P]:
    """Lets in who has any role, of the platform or in a tenant; the view asks for the rest."""

    @wraps(view)
    def checked(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        page_request = with_access(request)
        access = page_request.access
        if access.platform is None and not access.tenants:
            raise PermissionDenied(NO_ROLE)
        try:
            return view(page_request, *args, **kwargs)
        except NotVisible as refusal:
            raise Http404(str(refusal)) from None
        except NotAllowed as refusal:
            raise PermissionDenied(str(refusal)) from None
        except VersionConflict as refusal:
            return render(request, "409.html", {"problem": str(refusal)}, status=409)

    return login_required(checked)


def with_access(request: HttpRequest) -> PageRequest:
    """Returns the request with what its person may do. Up to three queries, the first time."""
    page_request = cast(PageRequest, request)
    if getattr(request, "access", None) is None:
        page_request.access = access_of_user(request.user, request_id_of(request))
    return page_request


def _role(request: HttpRequest, role: Role, to_post: Role | None) -> Role:
    return to_post if to_post is not None and request.method == "POST" else role
