"""`/api/v1`: the pool now, for operators' own tools; the same picture as the pages. Moves:
api_moves.py."""

import time
from typing import Any, Final

from asgiref.sync import async_to_sync
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import IsPlatform
from controlplane.api.shapes import ErrorSerializer
from controlplane.api.views import ApiView
from controlplane.fleet import serializers
from controlplane.fleet.charts import HISTORY_S, points_of
from controlplane.fleet.observer import Picture
from controlplane.fleet.picture import InstanceRow, is_stale
from controlplane.fleet.watch import fleet_watch

EVENTS_MAX: Final = 50


class OperatorView(ApiView):
    """For sessions of the platform's people: viewers read, operators change. No keys."""

    permission_classes = (IsPlatform,)
    looks_at_pool = True


class SnapshotView(OperatorView):
    @extend_schema(
        responses={200: serializers.SnapshotSerializer, 403: ErrorSerializer},
        summary="The whole pool now",
    )
    def get(self, request: Request) -> Response:
        watch = fleet_watch()
        picture = watch.observer.look()
        return Response(
            serializers.SnapshotSerializer(
                {
                    "at_unix_s": picture.at_unix_s,
                    "pool": watch.pool,
                    "model": watch.model,
                    "totals": picture.totals,
                    "parts": picture.parts,
                    "instances": _instances(picture),
                }
            ).data
        )


class InstancesView(OperatorView):
    @extend_schema(
        responses={200: serializers.InstanceSerializer(many=True)},
        parameters=[OpenApiParameter("state", str, description="Only instances in this state.")],
        summary="All instances, by node and name",
    )
    def get(self, request: Request) -> Response:
        wanted = request.query_params.get("state")
        found = [
            i
            for i in _instances(fleet_watch().observer.look())
            if wanted is None or i["state"] == wanted
        ]
        return Response(serializers.InstanceSerializer(found, many=True).data)


class InstanceView(OperatorView):
    @extend_schema(
        responses={200: serializers.InstanceSerializer, 404: ErrorSerializer},
        summary="One instance",
    )
    def get(self, request: Request, name: str) -> Response:
        picture = fleet_watch().observer.look()
        if name not in picture.rows:
            raise NotFound(f"name: there is no instance {name!r}")
        found = _instance(name, picture.rows[name], picture.at_unix_s)
        return Response(serializers.InstanceSerializer(found).data)


class EventsView(OperatorView):
    @extend_schema(
        responses={200: serializers.EventSerializer(many=True)},
        parameters=[
            OpenApiParameter("limit", int, description=f"1 to {EVENTS_MAX}, default {EVENTS_MAX}.")
        ],
        summary="The newest events, newest first",
    )
    def get(self, request: Request) -> Response:
        limit = whole_number(request, "limit", 1, EVENTS_MAX, default=EVENTS_MAX)
        events = list(fleet_watch().observer.look().events.values())[:limit]
        return Response(serializers.EventSerializer(events, many=True).data)


class HistoryView(OperatorView):
    @extend_schema(
        responses={200: serializers.HistorySerializer},
        parameters=[
            OpenApiParameter(
                "since_unix_s", int, description="Only newer points; default: ten minutes ago."
            )
        ],
        summary="The charts' points of the last ten minutes, one a second",
    )
    def get(self, request: Request) -> Response:
        now_s = int(time.time())
        oldest_s = now_s - HISTORY_S
        since_s = whole_number(request, "since_unix_s", 0, now_s + 3600, default=oldest_s)
        watch = fleet_watch()
        picture = watch.observer.look()
        samples = async_to_sync(watch.history)(max(since_s, oldest_s))
        capacities = {n: r.capacity_tokens for n, r in picture.rows.items() if r.capacity_tokens}
        points = points_of(samples, picture.point.series, capacities)
        body = {"series": picture.point.series, "points": points}
        return Response(serializers.HistorySerializer(body).data)


def _instances(picture: Picture) -> list[dict[str, Any]]:
    return [_instance(name, row, picture.at_unix_s) for name, row in picture.rows.items()]


def _instance(name: str, row: InstanceRow, now_unix_s: float) -> dict[str, Any]:
    return {
        **row._asdict(),
        "name": name,
        "is_stale": is_stale(row, now_unix_s),
        "freeness_steps": row.freeness if isinstance(row.freeness, float) else None,
    }


def whole_number(request: Request, name: str, low: int, high: int, *, default: int) -> int:
    """Returns a number from the query. Raises: ValidationError naming it."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise ValidationError(f"{name}: expected a whole number from {low} to {high}")
    return int(text)
