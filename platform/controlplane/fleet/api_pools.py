"""`/api/v1/pools`: which pools there should be, and the other names of their models."""

from django.db import transaction
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import IsPlatform
from controlplane.api.etags import etag_of, wanted_version
from controlplane.api.idempotency import once
from controlplane.api.inputs import changes_of, read_input, read_query
from controlplane.api.pagination import PageQuery, page_of
from controlplane.api.schema import CHANGED, CONFLICT, IDEMPOTENCY_KEY, IF_MATCH, ONCE
from controlplane.api.shapes import ReasonInput
from controlplane.api.views import ApiView, page_response
from controlplane.errors import NotVisible
from controlplane.fleet import pool_serializers as shapes
from controlplane.fleet.models import ModelAlias, Pool
from controlplane.fleet.pool_selectors import alias_get, pool_get, pools_list
from controlplane.fleet.pool_services import (
    alias_remove,
    alias_set,
    pool_create,
    pool_remove,
    pool_update,
)
from controlplane.tenants.access import Role

_GONE = OpenApiResponse(description="It is gone.")


class PoolsView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="pools_list",
        tags=["pools"],
        parameters=[PageQuery],
        responses={200: shapes.PoolsOutput},
        summary="The pools that there should be, by name",
    )
    def get(self, request: Request) -> Response:
        query = read_query(PageQuery, request)
        page = page_of(pools_list(), order="name", limit=query["limit"], cursor=query.get("cursor"))
        return page_response(page, shapes.PoolOutput)

    @extend_schema(
        operation_id="pools_create",
        tags=["pools"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.PoolInput,
        responses={201: shapes.PoolOutput, **ONCE},
        summary="Make a pool; its instances start at once if it is enabled (owners)",
    )
    def post(self, request: Request) -> Response:
        self.access.require(Role.OWNER)
        values, why = changes_of(read_input(shapes.PoolInput, request))

        def act() -> Response:
            return _one(pool_create(access=self.access, changes=values, reason=why), 201)

        return once(request, act)


class PoolView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="pools_get",
        tags=["pools"],
        responses={200: shapes.PoolOutput},
        summary="One pool",
    )
    def get(self, request: Request, name: str) -> Response:
        return _one(pool_get(name))

    @extend_schema(
        operation_id="pools_update",
        tags=["pools"],
        parameters=[IF_MATCH],
        request=shapes.PoolSettings,
        responses={200: shapes.PoolOutput, **CHANGED, **CONFLICT},
        summary="Change a pool: instances, bounds, thresholds (operators), its model (owners)",
    )
    def patch(self, request: Request, name: str) -> Response:
        pool = pool_get(name)
        changes, why = changes_of(read_input(shapes.PoolSettings, request, partial=True))
        version = wanted_version(request)
        with transaction.atomic():
            changed = pool_update(
                access=self.access, pool=pool, changes=changes, version=version, reason=why
            )
        return _one(changed)

    @extend_schema(
        operation_id="pools_remove",
        tags=["pools"],
        parameters=[ReasonInput, IF_MATCH],
        responses={204: _GONE, **CHANGED, **CONFLICT},
        summary="Remove a pool that is off, with its aliases (owners)",
    )
    def delete(self, request: Request, name: str) -> Response:
        pool = pool_get(name)
        query = read_query(ReasonInput, request)
        self.access.require(Role.OWNER)
        version = wanted_version(request)
        with transaction.atomic():
            pool_remove(access=self.access, pool=pool, version=version, reason=query["reason"])
        return Response(status=204)


class AliasesView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="aliases_list",
        tags=["pools"],
        parameters=[PageQuery],
        responses={200: shapes.AliasesOutput},
        summary="Other names of a pool's model",
    )
    def get(self, request: Request, name: str) -> Response:
        pool = pool_get(name)
        query = read_query(PageQuery, request)
        rows = ModelAlias.objects.filter(pool=pool).select_related("pool")
        page = page_of(rows, order="alias", limit=query["limit"], cursor=query.get("cursor"))
        return page_response(page, shapes.AliasOutput)


class AliasView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="aliases_put",
        tags=["pools"],
        request=shapes.AliasInput,
        responses={200: shapes.AliasOutput, **CONFLICT},
        summary="Let clients ask for the pool's model by another name, too (operators)",
    )
    def put(self, request: Request, name: str, alias: str) -> Response:
        pool = pool_get(name)
        body = read_input(shapes.AliasInput, request)
        with transaction.atomic():
            found = alias_set(access=self.access, alias=alias, pool=pool, reason=body["reason"])
        return Response(shapes.AliasOutput(found).data)

    @extend_schema(
        operation_id="aliases_remove",
        tags=["pools"],
        parameters=[ReasonInput],
        responses={204: _GONE},
        summary="Remove another name of the pool's model (operators)",
    )
    def delete(self, request: Request, name: str, alias: str) -> Response:
        query = read_query(ReasonInput, request)
        found = alias_get(alias)
        if found.pool.name != name:
            raise NotVisible(f"There is no alias {alias}.")
        with transaction.atomic():
            alias_remove(access=self.access, alias=found, reason=query["reason"])
        return Response(status=204)


def _one(pool: Pool, status: int = 200) -> Response:
    return Response(shapes.PoolOutput(pool).data, status=status, headers=etag_of(pool))
