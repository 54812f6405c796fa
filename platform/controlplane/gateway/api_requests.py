"""`/api/v1/requests/{id}`: one request, and its cancel."""

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.inputs import read_input
from controlplane.api.schema import CONFLICT
from controlplane.api.shapes import ReasonInput
from controlplane.api.views import ApiView
from controlplane.errors import NotVisible
from controlplane.fleet.api_requests import live_rows
from controlplane.gateway.live_requests import public_id
from controlplane.gateway.request_shapes import RequestOutput, record_row
from controlplane.requests_cancel import request_cancel
from controlplane.usage.selectors import request_get


class RequestView(ApiView):
    @extend_schema(
        operation_id="requests_get",
        tags=["requests"],
        responses={200: RequestOutput},
        summary="One request: as it runs now, or as it has ended",
    )
    def get(self, request: Request, request_id: str) -> Response:
        name = public_id(request_id)
        try:
            row = record_row(request_get(access=self.access, request_id=name))
        except NotVisible:
            wanted = (row for row in live_rows(self.access) if row["public_id"] == name)
            # Of several choices the one that was named, else the first.
            found = sorted(wanted, key=lambda row: row["request_id"] != request_id)
            if not found:
                raise NotVisible(f"There is no request {request_id!r}.") from None
            row = found[0]
        return Response(RequestOutput(row).data)


class CancelView(ApiView):
    @extend_schema(
        operation_id="requests_cancel",
        tags=["requests"],
        request=ReasonInput,
        responses={
            202: OpenApiResponse(description="Its engines are told; they end it within a second."),
            **CONFLICT,
        },
        summary="End a running request; its stream ends with the finish reason abort",
    )
    def post(self, request: Request, request_id: str) -> Response:
        body = read_input(ReasonInput, request)
        request_cancel(access=self.access, request_id=request_id, reason=body["reason"])
        return Response(status=202)
