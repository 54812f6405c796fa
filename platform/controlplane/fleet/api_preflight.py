"""`/api/v1/migrations/preflight`: whether moves would work here."""

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.inputs import read_input
from controlplane.fleet import move_serializers as shapes
from controlplane.fleet.api_moves import REFUSED, MoveView
from controlplane.fleet.preflight import LENGTHS
from controlplane.fleet.preflight_run import preflight_get, preflight_measure


class PreflightView(MoveView):
    @extend_schema(
        responses={
            200: shapes.PreflightSerializer,
            404: OpenApiResponse(shapes.MoveErrorSerializer, "None has been run yet."),
        },
        summary="The last pre-flight: whether moves would work, and what they would take",
    )
    def get(self, request: Request) -> Response:
        report = preflight_get()
        if report is None:
            raise NotFound("preflight: none has been run yet; POST here to run one")
        return Response(shapes.PreflightSerializer(report).data)

    @extend_schema(
        request=shapes.PreflightInput,
        responses={200: shapes.PreflightSerializer, 409: REFUSED[409], 503: REFUSED[503]},
        summary="Measure anew; takes seconds, up to a minute when engines do not answer",
    )
    def post(self, request: Request) -> Response:
        wanted = read_input(shapes.PreflightInput, request)
        report = preflight_measure(wanted.get("tokens") or LENGTHS)
        return Response(shapes.PreflightSerializer(report).data)
