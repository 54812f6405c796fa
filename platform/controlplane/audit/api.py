"""`/api/v1/audit`: who did what; for the platform's people, and for admins of their tenants."""

from django.http import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from controlplane.api.inputs import read_query
from controlplane.api.pagination import page_of
from controlplane.api.renderers import WITH_CSV, csv_response, wants_csv
from controlplane.api.views import ApiView, page_response
from controlplane.audit import serializers as shapes
from controlplane.audit.export import audit_csv
from controlplane.audit.selectors import AuditFilters, audit_list, sees_audit
from controlplane.errors import NotAllowed

_OTHERS = ("limit", "cursor", "format")


class AuditView(ApiView):
    renderer_classes = WITH_CSV

    @extend_schema(
        operation_id="audit_list",
        tags=["audit"],
        parameters=[shapes.AuditQuery],
        responses={
            (200, "application/json"): shapes.AuditsOutput,
            (200, "text/csv"): OpenApiTypes.STR,
        },
        summary="Who did what, the newest first; as CSV with ?format=csv",
    )
    def get(self, request: Request) -> HttpResponseBase:
        if not sees_audit(self.access):
            raise NotAllowed("Needs the tenant admin role.")
        query = read_query(shapes.AuditQuery, request)
        filters = AuditFilters(**{k: v for k, v in query.items() if k not in _OTHERS})
        rows = audit_list(access=self.access, filters=filters)
        if wants_csv(request):
            return csv_response(audit_csv(rows), "audit")
        page = page_of(
            rows, order="-at", has_times=True, limit=query["limit"], cursor=query.get("cursor")
        )
        return page_response(page, shapes.AuditOutput)
