"""`/api/v1/whatif`: simulation runs, for operators' own tools."""

from typing import Final

from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.idempotency import once
from controlplane.api.inputs import read_input
from controlplane.api.schema import IDEMPOTENCY_KEY, ONCE
from controlplane.api.shapes import ErrorSerializer
from controlplane.fleet.api import OperatorView, whole_number
from controlplane.whatif import serializers as shapes
from controlplane.whatif.models import RunState, SimulationRun
from controlplane.whatif.selectors import LIMIT_DEFAULT, LIMIT_MAX, run_get, runs_list
from controlplane.whatif.services import run_cancel, run_start
from controlplane.whatif.values import WhatIfRefused, Wish

RETRY_AFTER_S: Final = 60
"""A place in the queue is free when a run has ended, which takes up to minutes."""
_STATUS: Final = {"invalid": 400, "queue_full": 429, "ended": 409}
_TYPE: Final = {400: "invalid_request_error", 409: "conflict_error", 429: "rate_limit_exceeded"}
_NO_RUN: Final = OpenApiResponse(ErrorSerializer, "There is no such run.")


class WhatIfView(OperatorView):
    """Also gives refused wishes the shape of all our errors."""

    looks_at_pool = False

    def handle_exception(self, exc: Exception) -> Response:
        if not isinstance(exc, WhatIfRefused):
            return super().handle_exception(exc)
        status = _STATUS[exc.code]
        body = {
            "message": f"{exc.field}: {exc}" if exc.field else str(exc),
            "type": _TYPE[status],
            "param": exc.field or None,
            "code": None if exc.code == "invalid" else exc.code,
        }
        headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else None
        response = Response({"error": body}, status=status, headers=headers)
        response.exception = True
        return response


class RunsView(WhatIfView):
    @extend_schema(
        operation_id="whatif_list",
        responses={200: shapes.RunsSerializer},
        parameters=[
            OpenApiParameter("state", str, enum=RunState.values),
            OpenApiParameter(
                "limit", int, description=f"1 to {LIMIT_MAX}, default {LIMIT_DEFAULT}."
            ),
        ],
        summary="Simulation runs, the newest first",
    )
    def get(self, request: Request) -> Response:
        state = request.query_params.get("state", "")
        if state and state not in RunState.values:
            raise ValidationError(f"state: expected one of {', '.join(RunState.values)}")
        limit = whole_number(request, "limit", 1, LIMIT_MAX, default=LIMIT_DEFAULT)
        page = runs_list(state=state, limit=limit)
        return Response(shapes.RunsSerializer(page).data)

    @extend_schema(
        operation_id="whatif_start",
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.RunInput,
        responses={
            202: OpenApiResponse(
                shapes.RunDetailSerializer, "It waits or runs. `Location`: where to watch it."
            ),
            400: OpenApiResponse(ErrorSerializer, "`param` names the field, as pool.instances."),
            429: OpenApiResponse(ErrorSerializer, "Too many runs wait already."),
            **ONCE,
        },
        summary="Simulate a scenario, alone or beside a second one",
    )
    def post(self, request: Request) -> Response:
        wanted = read_input(shapes.RunInput, request)

        def act() -> Response:
            run = run_start(user=request.user, wish=Wish(**wanted))
            where = reverse("api-whatif-run", args=[run.run_id])
            body = shapes.RunDetailSerializer(run).data
            return Response(body, status=202, headers={"Location": where})

        return once(request, act, keeps_refusals=True)


class RunView(WhatIfView):
    @extend_schema(
        operation_id="whatif_get",
        responses={200: shapes.RunDetailSerializer, 404: _NO_RUN},
        summary="One simulation run, with its report once it is done",
    )
    def get(self, request: Request, run_id: str) -> Response:
        return Response(shapes.RunDetailSerializer(_found(run_id)).data)


class CancelView(WhatIfView):
    @extend_schema(
        operation_id="whatif_cancel",
        request=None,
        responses={
            202: shapes.RunDetailSerializer,
            404: _NO_RUN,
            409: OpenApiResponse(ErrorSerializer, "It has ended already."),
        },
        summary="End a run that waits or runs",
    )
    def post(self, request: Request, run_id: str) -> Response:
        run_cancel(user=request.user, run=_found(run_id))
        return Response(shapes.RunDetailSerializer(_found(run_id)).data, status=202)


def _found(run_id: str) -> SimulationRun:
    run = run_get(run_id)
    if run is None:
        raise NotFound(f"run_id: there is no run {run_id!r}")
    return run
