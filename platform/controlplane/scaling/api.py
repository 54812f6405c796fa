"""`/api/v1/scaling` and what of it belongs to a pool: how it stands, decisions, schedule."""

from typing import Any, Final

from django.db import transaction
from django.utils import timezone
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
from controlplane.fleet.models import Pool
from controlplane.fleet.pool_selectors import pool_get
from controlplane.fleet.watch import fleet_watch
from controlplane.scaling import serializers as shapes
from controlplane.scaling.live import Seen, pool_seen
from controlplane.scaling.models import ScalingWindow
from controlplane.scaling.selectors import decisions_list, scaling_now, windows_list
from controlplane.scaling.services import window_add, window_remove, window_update
from controlplane.tenants.access import Role
from engine_pool.errors import ConfigError

_GONE: Final = OpenApiResponse(description="It is gone.")


class DecisionsView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="scaling_decisions_list",
        tags=["scaling"],
        parameters=[shapes.DecisionsQuery],
        responses={200: shapes.DecisionsOutput},
        summary="What scaling decided and why, the newest first",
    )
    def get(self, request: Request) -> Response:
        query = read_query(shapes.DecisionsQuery, request)
        rows = decisions_list(
            access=self.access,
            pool=query.get("pool", ""),
            kinds=[query["kind"]] if "kind" in query else [],
            since=query.get("since"),
            until=query.get("until"),
        )
        page = page_of(
            rows, order="-at", has_times=True, limit=query["limit"], cursor=query.get("cursor")
        )
        return page_response(page, shapes.DecisionOutput)


class PoolScalingView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="pools_scaling_get",
        tags=["scaling"],
        responses={200: shapes.ScalingNowOutput},
        summary="How a pool's scaling stands now",
    )
    def get(self, request: Request, name: str) -> Response:
        pool = pool_get(name)
        now = scaling_now(access=self.access, pool=pool, now=timezone.now())
        seen, held = _seen(pool)
        return Response(
            shapes.ScalingNowOutput(
                {
                    "pool": pool.name,
                    "mode": now.mode,
                    "low_steps": pool.band_low_steps,
                    "high_steps": pool.band_high_steps,
                    "bounds": now.bounds,
                    "next_bounds_at": now.next_bounds_at,
                    "checks": now.tick,
                    "checked_at": now.checked_at,
                    "next_check_at": now.next_check_at,
                    "is_late": now.is_late,
                    "under_since": now.under_since,
                    "over_since": now.over_since,
                    "idle_since": now.idle_since,
                    "ttft_under_since": now.ttft_under_since,
                    "grow_blocked_until": now.grow_blocked_until,
                    "shrink_blocked_until": now.shrink_blocked_until,
                    "held_requests": held,
                    "now": seen,
                    "last_change": now.last_change,
                }
            ).data
        )


class WindowsView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="scaling_windows_list",
        tags=["scaling"],
        parameters=[PageQuery],
        responses={200: shapes.WindowsOutput},
        summary="A pool's schedule: hours with bounds of their own",
    )
    def get(self, request: Request, name: str) -> Response:
        pool = pool_get(name)
        query = read_query(PageQuery, request)
        rows = windows_list(access=self.access, pool=pool.name)
        page = page_of(rows, order="name", limit=query["limit"], cursor=query.get("cursor"))
        return page_response(page, shapes.WindowOutput)

    @extend_schema(
        operation_id="scaling_windows_create",
        tags=["scaling"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.WindowInput,
        responses={201: shapes.WindowOutput, **ONCE},
        summary="Add a window (operators)",
    )
    def post(self, request: Request, name: str) -> Response:
        pool = pool_get(name)
        self.access.require(Role.OPERATOR)
        values, why = changes_of(read_input(shapes.WindowInput, request))

        def act() -> Response:
            made = window_add(
                access=self.access, pool=pool, changes=shapes.plain(values), reason=why
            )
            return _one(made, 201)

        return once(request, act)


class WindowView(ApiView):
    permission_classes = (IsPlatform,)

    @extend_schema(
        operation_id="scaling_windows_get",
        tags=["scaling"],
        responses={200: shapes.WindowOutput},
        summary="One window",
    )
    def get(self, request: Request, name: str, window: str) -> Response:
        return _one(self._found(name, window))

    @extend_schema(
        operation_id="scaling_windows_update",
        tags=["scaling"],
        parameters=[IF_MATCH],
        request=shapes.WindowInput,
        responses={200: shapes.WindowOutput, **CHANGED, **CONFLICT},
        summary="Change a window (operators)",
    )
    def patch(self, request: Request, name: str, window: str) -> Response:
        found = self._found(name, window)
        changes, why = changes_of(read_input(shapes.WindowInput, request, partial=True))
        version = wanted_version(request)
        with transaction.atomic():
            changed = window_update(
                access=self.access, window=found, changes=shapes.plain(changes), version=version,
                reason=why,
            )  # fmt: skip
        return _one(changed)

    @extend_schema(
        operation_id="scaling_windows_remove",
        tags=["scaling"],
        parameters=[ReasonInput, IF_MATCH],
        responses={204: _GONE, **CHANGED, **CONFLICT},
        summary="Remove a window (operators)",
    )
    def delete(self, request: Request, name: str, window: str) -> Response:
        found = self._found(name, window)
        query = read_query(ReasonInput, request)
        self.access.require(Role.OPERATOR)
        version = wanted_version(request)
        with transaction.atomic():
            window_remove(access=self.access, window=found, version=version, reason=query["reason"])
        return Response(status=204)

    def _found(self, pool: str, name: str) -> ScalingWindow:
        rows = windows_list(access=self.access, pool=pool_get(pool).name)
        found = rows.filter(name=name).first()
        if found is None:
            raise NotVisible(f"There is no window {name}.")
        return found


def _seen(pool: Pool) -> tuple[Seen | None, int | None]:
    """Returns the pool as this web process sees it, and the requests that it holds."""
    try:
        watch = fleet_watch(pool.name)
    except NotVisible:
        return None, None
    view, picture = watch.client.view, watch.observer.look()
    if not view.store_connected:
        return None, picture.totals.held
    try:
        seen = pool_seen(pool, dict(view.statuses), dict(view.loads), picture.at_unix_s)
    except ConfigError:
        return None, picture.totals.held
    return seen, picture.totals.held


def _one(row: Any, status: int = 200) -> Response:
    return Response(shapes.WindowOutput(row).data, status=status, headers=etag_of(row))
