"""`/api/v1` of SLOs and priority classes: what is promised, and how classes are treated."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import IsPlatform
from controlplane.api.etags import etag_of, wanted_version
from controlplane.api.inputs import changes_of, read_input, read_query
from controlplane.api.pagination import PageQuery, page_of
from controlplane.api.problem import Problem
from controlplane.api.schema import CHANGED, CONFLICT, IF_MATCH
from controlplane.api.shapes import ReasonInput
from controlplane.api.views import ApiView, page_response
from controlplane.errors import NotVisible
from controlplane.tenants import slo_serializers as shapes
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import ClassSettings, Slo, Tenant
from controlplane.tenants.selectors import slos_list
from controlplane.tenants.services import class_update, slo_remove, slo_set

_CLASS = OpenApiParameter("priority_class", str, OpenApiParameter.PATH, enum=shapes.CLASSES)
_IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="Only when it still has this ETag; left out: whatever is there.",
)
_SET: dict[Any, Any] = {200: shapes.SloOutput, 412: CHANGED[412], **CONFLICT}


class SlosView(ApiView):
    @extend_schema(
        operation_id="slos_list",
        tags=["slos"],
        parameters=[PageQuery],
        responses={200: shapes.SlosOutput},
        summary="SLOs of all visible tenants, and those for everybody (tenant: null)",
    )
    def get(self, request: Request) -> Response:
        return _listed(request, slos_list(access=self.access))


class SloView(ApiView):
    """Of everybody without one of their own."""

    @extend_schema(
        operation_id="slos_put",
        tags=["slos"],
        parameters=[_CLASS, _IF_MATCH],
        request=shapes.SloInput,
        responses=_SET,
        summary="Set what all tenants are promised in a class (operators of the platform)",
    )
    def put(self, request: Request, priority_class: str) -> Response:
        return _put(self.access, request, None, priority_class)

    @extend_schema(
        operation_id="slos_remove",
        tags=["slos"],
        parameters=[_CLASS, ReasonInput],
        responses={204: OpenApiResponse(description="Nothing is promised any more.")},
        summary="Promise nothing to all tenants in a class (operators of the platform)",
    )
    def delete(self, request: Request, priority_class: str) -> Response:
        return _remove(self.access, request, None, priority_class)


class TenantSlosView(ApiView):
    @extend_schema(
        operation_id="tenant_slos_list",
        tags=["slos"],
        parameters=[PageQuery],
        responses={200: shapes.SlosOutput},
        summary="A tenant's own SLOs; in other classes those for everybody hold",
    )
    def get(self, request: Request, slug: str) -> Response:
        tenant = self.tenant(slug)
        return _listed(request, slos_list(access=self.access).filter(tenant=tenant))


class TenantSloView(ApiView):
    @extend_schema(
        operation_id="tenant_slos_put",
        tags=["slos"],
        parameters=[_CLASS, _IF_MATCH],
        request=shapes.SloInput,
        responses=_SET,
        summary="Set what a tenant is promised in a class (operators of the platform)",
    )
    def put(self, request: Request, slug: str, priority_class: str) -> Response:
        return _put(self.access, request, self.tenant(slug), priority_class)

    @extend_schema(
        operation_id="tenant_slos_remove",
        tags=["slos"],
        parameters=[_CLASS, ReasonInput],
        responses={204: OpenApiResponse(description="What everybody is promised holds again.")},
        summary="Remove a tenant's own SLO in a class (operators of the platform)",
    )
    def delete(self, request: Request, slug: str, priority_class: str) -> Response:
        return _remove(self.access, request, self.tenant(slug), priority_class)


class ClassesView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="classes_list",
        tags=["classes"],
        parameters=[PageQuery],
        responses={200: shapes.ClassesOutput},
        summary="The priority classes and how they are treated",
    )
    def get(self, request: Request) -> Response:
        query = read_query(PageQuery, request)
        rows = ClassSettings.objects.all()
        page = page_of(rows, order="name", limit=query["limit"], cursor=query.get("cursor"))
        return page_response(page, shapes.ClassOutput)


class ClassView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="classes_get",
        tags=["classes"],
        parameters=[OpenApiParameter("name", str, OpenApiParameter.PATH, enum=shapes.CLASSES)],
        responses={200: shapes.ClassOutput},
        summary="One priority class",
    )
    def get(self, request: Request, name: str) -> Response:
        return _class(_found_class(name))

    @extend_schema(
        operation_id="classes_update",
        tags=["classes"],
        parameters=[
            OpenApiParameter("name", str, OpenApiParameter.PATH, enum=shapes.CLASSES),
            IF_MATCH,
        ],
        request=shapes.ClassInput,
        responses={200: shapes.ClassOutput, **CHANGED, **CONFLICT},
        summary="Change how a class is treated (operators)",
    )
    def patch(self, request: Request, name: str) -> Response:
        found = _found_class(name)
        changes, why = changes_of(read_input(shapes.ClassInput, request, partial=True))
        changed = class_update(
            access=self.access,
            settings=found,
            changes=changes,
            version=wanted_version(request),
            reason=why,
        )
        return _class(changed)


def _listed(request: Request, rows: Any) -> Response:
    query = read_query(PageQuery, request)
    page = page_of(rows, order="priority_class", limit=query["limit"], cursor=query.get("cursor"))
    return page_response(page, shapes.SloOutput)


def _put(access: Access, request: Request, tenant: Tenant | None, name: str) -> Response:
    # First of all, so that nobody else learns from other answers what there is.
    access.require(Role.OPERATOR)
    _check_class(name)
    changes, why = changes_of(read_input(shapes.SloInput, request))
    version = wanted_version(request, is_required=False)
    if version is not None and _slo(tenant, name) is None:
        raise Problem(412, "There is no such SLO yet; leave If-Match out.", code="version_conflict")
    slo = slo_set(
        access=access,
        tenant=tenant,
        priority_class=name,
        changes=changes,
        version=version,
        reason=why,
    )
    return Response(shapes.SloOutput(slo).data, headers=etag_of(slo))


def _remove(access: Access, request: Request, tenant: Tenant | None, name: str) -> Response:
    query = read_query(ReasonInput, request)
    # First of all, so that nobody else learns from other answers what there is.
    access.require(Role.OPERATOR)
    slo = _slo(tenant, name)
    if slo is None:
        raise NotVisible(f"There is no SLO in the class {name!r}.")
    slo_remove(access=access, slo=slo, reason=query["reason"])
    return Response(status=204)


def _slo(tenant: Tenant | None, name: str) -> Slo | None:
    return Slo.objects.filter(tenant=tenant, priority_class=name).first()


def _check_class(name: str) -> None:
    if name not in shapes.CLASSES:
        raise NotVisible(f"There is no class {name!r}.")


def _found_class(name: str) -> ClassSettings:
    _check_class(name)
    return ClassSettings.objects.get(name=name)


def _class(settings: ClassSettings) -> Response:
    return Response(shapes.ClassOutput(settings).data, headers=etag_of(settings))
