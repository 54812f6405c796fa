"""`/api/v1` of usage, prices, and how the SLOs stand."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import IsPlatform
from controlplane.api.idempotency import once
from controlplane.api.inputs import read_input, read_query
from controlplane.api.pagination import page_of, page_of_list
from controlplane.api.problem import Problem
from controlplane.api.renderers import WITH_CSV, csv_response, wants_csv
from controlplane.api.schema import IDEMPOTENCY_KEY, ONCE
from controlplane.api.views import ApiView, page_response
from controlplane.gateway.request_shapes import RequestListOutput, record_row
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import ApiKey
from controlplane.tenants.selectors import tenant_get, visible_to
from controlplane.usage import serializers as shapes
from controlplane.usage.export import usage_csv
from controlplane.usage.models import ModelPrice
from controlplane.usage.prices import price_set
from controlplane.usage.selectors import slo_report, slow_requests, usage_rows
from controlplane.usage.sums import UsageSum
from engine_pool.types import PriorityClass

MONTH: Final = timedelta(days=31)
RANGE_MAX: Final = {"hour": timedelta(days=93), "day": timedelta(days=1100)}
"""Of times that make many rows; months and the others may go back for ever."""
CSV_AND_JSON: Final = {(200, "text/csv"): OpenApiTypes.STR}


class TenantUsageView(ApiView):
    renderer_classes = WITH_CSV

    @extend_schema(
        operation_id="tenant_usage_get",
        tags=["usage"],
        parameters=[shapes.UsageQuery],
        responses={(200, "application/json"): shapes.UsageOutput, **CSV_AND_JSON},
        summary="What a tenant has used, and what it cost; as CSV with ?format=csv",
    )
    def get(self, request: Request, slug: str) -> HttpResponseBase:
        tenant = self.tenant(slug)
        return _usage(request, self.access, [tenant.pk], tenant.slug)


class UsageView(ApiView):
    renderer_classes = WITH_CSV

    @extend_schema(
        operation_id="usage_get",
        tags=["usage"],
        parameters=[shapes.UsageQuery],
        responses={(200, "application/json"): shapes.UsageOutput, **CSV_AND_JSON},
        summary="What all visible tenants have used; as CSV with ?format=csv",
    )
    def get(self, request: Request) -> HttpResponseBase:
        return _usage(request, self.access, None, "all")


class PricesView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="prices_list",
        tags=["prices"],
        parameters=[shapes.PricesQuery],
        responses={200: shapes.PricesOutput},
        summary="Prices of models, the newest beginning first",
    )
    def get(self, request: Request) -> Response:
        query = read_query(shapes.PricesQuery, request)
        rows = ModelPrice.objects.all()
        if "model" in query:
            rows = rows.filter(model=query["model"])
        page = page_of(
            rows,
            order="-valid_from",
            has_times=True,
            limit=query["limit"],
            cursor=query.get("cursor"),
        )
        return page_response(page, shapes.PriceOutput)

    @extend_schema(
        operation_id="prices_set",
        tags=["prices"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.PriceInput,
        responses={201: shapes.PriceOutput, **ONCE},
        summary="Set a model's price from a moment on (owners of the platform)",
    )
    def post(self, request: Request) -> Response:
        body = read_input(shapes.PriceInput, request)
        self.access.require(Role.OWNER)
        body.setdefault("valid_from", timezone.now())

        def act() -> Response:
            price = price_set(access=self.access, **body)
            return Response(shapes.PriceOutput(price).data, status=201)

        return once(request, act)


class SloReportView(ApiView):
    @extend_schema(
        operation_id="slo_report_get",
        tags=["slos"],
        parameters=[shapes.ReportQuery],
        responses={200: shapes.ReportOutput},
        summary="How SLOs stand, by tenant and class: attainment, error budget, burn rates",
    )
    def get(self, request: Request) -> Response:
        query = read_query(shapes.ReportQuery, request)
        found = slo_report(
            access=self.access, now=timezone.now(), tenant_id=_tenant_id(self.access, query)
        )
        page = page_of_list(found, limit=query["limit"], cursor=query.get("cursor"))
        return page_response(page, shapes.SloStateOutput)


class SlowRequestsView(ApiView):
    @extend_schema(
        operation_id="slo_slow_requests_list",
        tags=["slos"],
        parameters=[shapes.SlowQuery],
        responses={200: RequestListOutput},
        summary="Requests that missed a target, and where their time went",
    )
    def get(self, request: Request) -> Response:
        query = read_query(shapes.SlowQuery, request)
        wanted = query.get("priority_class")
        found = slow_requests(
            access=self.access,
            tenant_id=_tenant_id(self.access, query),
            priority_class=None if wanted is None else PriorityClass(wanted),
            since=query.get("since") or timezone.now() - timedelta(hours=1),
            limit=query["limit"],
        )
        body = {"requests": [record_row(r) for r in found], "left_out": 0}
        body |= {"has_more": False, "next_cursor": None}
        return Response(RequestListOutput(body).data)


def _tenant_id(access: Access, query: dict[str, Any]) -> int | None:
    slug = query.get("tenant")
    return None if slug is None else tenant_get(access=access, slug=slug).pk


def _usage(
    request: Request, access: Access, tenants: list[int] | None, name: str
) -> HttpResponseBase:
    query = read_query(shapes.UsageQuery, request)
    until = query.get("until") or timezone.now()
    since = query.get("since") or until - MONTH
    group_by = query["group_by"]
    if since >= until:
        raise Problem(400, "since: must be before until", param="since")
    longest = RANGE_MAX.get(group_by)
    if longest is not None and until - since > longest:
        message = f"since: at most {longest.days} days by {group_by}; take a longer group"
        raise Problem(400, message, param="since")
    rows = usage_rows(access=access, tenants=tenants, since=since, until=until, group_by=group_by)
    if wants_csv(request):
        return csv_response(usage_csv(rows), f"usage-{name}-by-{group_by}")
    page = page_of_list(rows, limit=query["limit"], cursor=query.get("cursor"))
    keys = _public_ids(access, page.rows) if group_by == "key" else {}
    body = {
        "group_by": group_by,
        "since": since,
        "until": until,
        "data": [{**asdict(row), "key": keys.get(row.row_id)} for row in page.rows],
        "has_more": page.next_cursor is not None,
        "next_cursor": page.next_cursor,
    }
    return Response(shapes.UsageOutput(body).data)


def _public_ids(access: Access, rows: Any) -> dict[int | None, str]:
    ids = [row.row_id for row in rows if isinstance(row, UsageSum) and row.row_id]
    keys = visible_to(access, ApiKey.objects.filter(pk__in=ids))
    return dict(keys.values_list("pk", "public_id"))
