"""`/api/v1`: moves of running requests, for operators' own tools. Pre-flight: api_preflight.py."""

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.inputs import read_input
from controlplane.fleet import move_serializers as shapes
from controlplane.fleet.api import OperatorView, whole_number
from controlplane.fleet.move_selectors import (
    GOES_ON,
    LIMIT_MAX,
    Migration,
    MigrationDetail,
    MigrationFilters,
    migration_get,
    migration_of_report,
    migrations_list,
)
from controlplane.fleet.moves import migration_cancel, migration_plan, migration_request
from controlplane.fleet.preflight_run import PreflightRunning
from engine_pool.errors import MoveRefused, PoolError, RequestNotRunning
from engine_pool.moves import MovePlan
from migration.report import MoveState

LIMIT_DEFAULT: Final = 50
RETRY_AFTER_S: Final = 2
"""An engine that did not answer is back, or known to be lost, a few seconds later."""
STATES: Final = (GOES_ON, *(s.value for s in MoveState))
_ERROR: Final = shapes.MoveErrorSerializer
REFUSED: Final = {
    403: OpenApiResponse(_ERROR, "No operator, or no CSRF token with a session."),
    409: OpenApiResponse(_ERROR, "Refused; nothing has changed. `reason` is a slug."),
    503: OpenApiResponse(_ERROR, "The source did not answer in time; it may have begun."),
}
_NO_REQUEST: Final = OpenApiResponse(_ERROR, "No instance runs or queues such a request.")
_NO_MOVE: Final = OpenApiResponse(_ERROR, "There is no such migration.")


class MoveView(OperatorView):
    """Also gives the pool's errors the shape of all our errors."""

    def handle_exception(self, exc: Exception) -> Response:
        if not isinstance(exc, PoolError):
            return super().handle_exception(exc)
        status = _status_of(exc)
        body: dict[str, str | None] = {
            "message": str(exc),
            "type": {404: "not_found_error", 409: "conflict_error"}.get(status, "api_error"),
            "param": "request_id" if status == 404 else None,
            "code": exc.code,
        }
        if isinstance(exc, MoveRefused):
            body["reason"] = exc.reason
        headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
        response = Response({"error": body}, status=status, headers=headers)
        response.exception = True
        return response


class MigrateView(MoveView):
    @extend_schema(
        request=shapes.MigrateInput,
        responses={
            202: OpenApiResponse(
                shapes.MigrationDetailSerializer, "It has begun. `Location`: where to watch it."
            ),
            404: _NO_REQUEST,
            **REFUSED,
        },
        summary="Move a running or queued request to another instance",
    )
    def post(self, request: Request, request_id: str) -> Response:
        wanted = read_input(shapes.MigrateInput, request)
        move = migration_request(
            user=request.user,
            request_id=request_id,
            destination=wanted["destination"],
            reason=wanted["reason"],
        )
        where = reverse("api-migration", args=[move.migration_id])
        body = _detail(migration_of_report(move))
        return Response(body, status=202, headers={"Location": where})


class DestinationsView(MoveView):
    @extend_schema(
        responses={200: shapes.PlanSerializer, 404: _NO_REQUEST, 409: REFUSED[409]},
        summary="Where a request could move to, the best first",
    )
    def get(self, request: Request, request_id: str) -> Response:
        plan = migration_plan(request_id=request_id)
        return Response(shapes.PlanSerializer(_plan(plan)).data)


class MigrationsView(MoveView):
    @extend_schema(
        operation_id="migrations_list",
        responses={200: shapes.MigrationsSerializer},
        parameters=[
            OpenApiParameter("state", str, enum=STATES),
            OpenApiParameter("instance", str, description="Source or destination."),
            OpenApiParameter("request_id", str),
            OpenApiParameter("since", str, description="Unix seconds or ISO 8601, of the start."),
            OpenApiParameter(
                "limit", int, description=f"1 to {LIMIT_MAX}, default {LIMIT_DEFAULT}."
            ),
        ],
        summary="Moves that go on and that have ended, the newest first",
    )
    def get(self, request: Request) -> Response:
        query = request.query_params
        state = query.get("state")
        if state is not None and state not in STATES:
            raise ValidationError(f"state: expected one of {', '.join(STATES)}")
        filters = MigrationFilters(
            state=state,
            instance=query.get("instance"),
            request_id=query.get("request_id"),
            since=_time(query.get("since")),
        )
        limit = whole_number(request, "limit", 1, LIMIT_MAX, default=LIMIT_DEFAULT)
        page = migrations_list(filters, limit)
        body = {"migrations": [_row(m) for m in page.moves], "left_out": page.left_out}
        return Response(shapes.MigrationsSerializer(body).data)


class MigrationView(MoveView):
    @extend_schema(
        responses={200: shapes.MigrationDetailSerializer, 404: _NO_MOVE},
        summary="One move, with its stages, messages and token times",
    )
    def get(self, request: Request, migration_id: str) -> Response:
        return Response(_detail(_found(migration_id)))


class CancelView(MoveView):
    @extend_schema(
        request=shapes.CancelInput,
        responses={202: shapes.MigrationDetailSerializer, 404: _NO_MOVE, **REFUSED},
        summary="End a move that goes on; the request stays at its source",
    )
    def post(self, request: Request, migration_id: str) -> Response:
        wanted = read_input(shapes.CancelInput, request)
        _found(migration_id)
        migration_cancel(user=request.user, migration_id=migration_id, reason=wanted["reason"])
        return Response(_detail(_found(migration_id)), status=202)


def _status_of(error: PoolError) -> int:
    if isinstance(error, RequestNotRunning):
        return 404
    return 409 if isinstance(error, MoveRefused | PreflightRunning) else 503


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationError("since: expected unix seconds or an ISO 8601 time") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _found(migration_id: str) -> MigrationDetail:
    detail = migration_get(migration_id)
    if detail is None:
        raise NotFound(f"migration_id: there is no migration {migration_id!r}")
    return detail


def _row(move: Migration) -> dict[str, Any]:
    return {
        **asdict(move),
        "started_unix_s": move.started_at.timestamp(),
        "ended_unix_s": move.ended_at.timestamp() if move.ended_at else None,
        "stage_count": move.stages,
    }


def _detail(detail: MigrationDetail) -> dict[str, Any]:
    told = {**asdict(detail.report), **_row(detail.move)}
    told |= {
        "stages": detail.report.stages,
        "is_live": detail.is_live,
        "report_age_s": detail.age_s,
    }
    return dict(shapes.MigrationDetailSerializer(told).data)


def _plan(plan: MovePlan) -> dict[str, Any]:
    freest = plan.freest
    return {
        "request_id": plan.request.request_id,
        "source": plan.source.instance,
        "is_queued": plan.is_queued,
        "kv_tokens": plan.request.kv_tokens,
        "source_freeness_steps": _finite(plan.source_freeness_steps),
        "report_age_s": plan.report_age_s,
        "freest": freest.instance if freest else None,
        "destinations": [
            {
                "instance": place.instance,
                "freeness_now_steps": _finite(place.freeness_now_steps),
                "freeness_after_steps": _finite(place.freeness_after_steps),
                "why_not": place.why_not,
            }
            for place in plan.destinations
        ],
    }


def _finite(steps: float | None) -> float | None:
    return steps if steps is not None and math.isfinite(steps) else None
