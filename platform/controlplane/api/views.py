"""What all views of /api/v1 are made of."""

from collections.abc import Sequence
from typing import Any, Final

from rest_framework.exceptions import NotFound
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from controlplane.api.access import IsKnown, access_of
from controlplane.api.pagination import Page
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import tenant_get

NO_STORE: Final = {"Cache-Control": "no-store"}


class ApiView(APIView):
    """For whoever is logged in and for keys; services and selectors say what they may do."""

    permission_classes: Sequence[type[BasePermission]] = (IsKnown,)

    @property
    def access(self) -> Access:
        return access_of(self.request)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raises: NotFound for an address that no database could look for."""
        super().initial(request, *args, **kwargs)
        if any("\x00" in str(value) for value in kwargs.values()):
            raise NotFound("There is no such thing.")

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        """Keeps what is only for this caller out of shared caches; errors are JSON always."""
        if isinstance(response, Response) and response.status_code >= 400:
            request.accepted_renderer = JSONRenderer()
            request.accepted_media_type = JSONRenderer.media_type
        answer = super().finalize_response(request, response, *args, **kwargs)
        answer.headers.setdefault("Cache-Control", "private, no-cache")
        return answer

    def tenant(self, slug: str, needed: Role = Role.VIEWER) -> Tenant:
        """Returns the tenant of the address. Raises: NotVisible, NotAllowed."""
        tenant = tenant_get(access=self.access, slug=slug)
        self.access.require(needed, tenant.pk)
        return tenant


def page_response(page: Page[Any], shape: type[Serializer[object]]) -> Response:
    """Returns a page of a list."""
    return Response(
        {
            "data": shape(page.rows, many=True).data,
            "has_more": page.next_cursor is not None,
            "next_cursor": page.next_cursor,
        }
    )
