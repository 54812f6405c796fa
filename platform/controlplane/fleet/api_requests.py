"""`/api/v1/requests`: what runs and waits now, with the ids that a move takes."""

from collections.abc import Iterator
from typing import Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.shapes import ErrorSerializer
from controlplane.fleet.api import OperatorView, whole_number
from controlplane.fleet.observer import Observer
from controlplane.fleet.watch import fleet_watch

LIMIT_MAX: Final = 1000
LIMIT_DEFAULT: Final = 200
RUNNING, WAITING = "running", "waiting"


class RequestSerializer(serializers.Serializer[object]):
    request_id = serializers.CharField()
    instance = serializers.CharField()
    state = serializers.ChoiceField([RUNNING, WAITING])
    priority_class = serializers.CharField()
    kv_tokens = serializers.IntegerField(help_text="In whole blocks; 0 while it waits.")
    prompt_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    preemptions = serializers.IntegerField()
    at_unix_s = serializers.FloatField(help_text="Of the instance's report.")


class RequestsSerializer(serializers.Serializer[object]):
    requests = RequestSerializer(many=True)
    left_out = serializers.IntegerField(help_text="Requests beyond the limit.")


class RequestsView(OperatorView):
    @extend_schema(
        responses={200: RequestsSerializer, 400: ErrorSerializer, 403: ErrorSerializer},
        parameters=[
            OpenApiParameter("instance", str, description="Only those of this instance."),
            OpenApiParameter("state", str, description="running or waiting."),
            OpenApiParameter(
                "limit", int, description=f"1 to {LIMIT_MAX}, default {LIMIT_DEFAULT}."
            ),
        ],
        summary="Requests that run or wait now, as their instances report them",
    )
    def get(self, request: Request) -> Response:
        limit = whole_number(request, "limit", 1, LIMIT_MAX, default=LIMIT_DEFAULT)
        state = request.query_params.get("state")
        if state not in (None, RUNNING, WAITING):
            raise ValidationError(f"state: expected {RUNNING} or {WAITING}")
        observer = fleet_watch().observer
        instance = request.query_params.get("instance")
        names = list(observer.look().rows)
        if instance is not None and instance not in names:
            raise ValidationError(f"instance: there is no instance {instance!r}")
        wanted = names if instance is None else [instance]
        found = [r for r in _requests(observer, wanted) if state in (None, r["state"])]
        body = {"requests": found[:limit], "left_out": max(0, len(found) - limit)}
        return Response(RequestsSerializer(body).data)


def _requests(observer: Observer, names: list[str]) -> Iterator[dict[str, object]]:
    for name in names:
        load = observer.load(name)
        if load is None:
            continue
        for state, listed in ((RUNNING, load.running), (WAITING, load.waiting)):
            for r in listed:
                yield {
                    "request_id": r.request_id,
                    "instance": name,
                    "state": state,
                    "priority_class": r.priority_class.value,
                    "kv_tokens": r.kv_tokens,
                    "prompt_tokens": r.prompt_tokens,
                    "output_tokens": r.output_tokens,
                    "preemptions": r.preemptions,
                    "at_unix_s": load.at_unix_s,
                }
