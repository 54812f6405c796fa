"""`/api/v1`: cordon, drain, stop, restart and release instances and nodes."""

from collections.abc import Callable
from typing import Any, Final

from django.db import transaction
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import IsPlatform
from controlplane.api.idempotency import once
from controlplane.api.inputs import read_input
from controlplane.api.schema import IDEMPOTENCY_KEY, ONCE
from controlplane.api.views import ApiView
from controlplane.fleet import drain_serializers as shapes
from controlplane.fleet.wish_selectors import (
    InstanceDrain,
    NodeDrain,
    instance_drain_get,
    node_drain_get,
    node_drain_now,
    nodes_list,
)
from controlplane.fleet.wish_services import (
    instance_cordon,
    instance_drain,
    instance_release,
    instance_restart,
    instance_stop,
    node_cordon,
    node_drain,
    node_release,
)
from controlplane.fleet.wish_terms import Terms
from engine_pool.policy.wishes import Leftover

_ASKED: Final = "It is wanted now. `Location`: where to watch it."


class _DrainView(ApiView):
    permission_classes = (IsPlatform,)


class InstanceDrainView(_DrainView):
    @extend_schema(
        operation_id="instances_drain_get",
        tags=["drains"],
        responses={200: shapes.InstanceDrainSerializer},
        summary="What is wanted of an instance, how far it is, and whether it is safe to stop",
    )
    def get(self, request: Request, name: str) -> Response:
        return Response(instance_body(instance_drain_get(name)))

    @extend_schema(
        operation_id="instances_drain",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.DrainInput,
        responses={202: OpenApiResponse(shapes.InstanceDrainSerializer, _ASKED), **ONCE},
        summary="Let everything leave an instance; its engine stays, proven empty (operators)",
    )
    def post(self, request: Request, name: str) -> Response:
        terms = _terms(read_input(shapes.DrainInput, request))
        return _asked(
            request, name, lambda: instance_drain(access=self.access, instance=name, terms=terms)
        )


class CordonView(_DrainView):
    @extend_schema(
        operation_id="instances_cordon",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.WishInput,
        responses={202: OpenApiResponse(shapes.InstanceDrainSerializer, _ASKED), **ONCE},
        summary="Let an instance take nothing new; what it has goes on there (operators)",
    )
    def post(self, request: Request, name: str) -> Response:
        terms = _terms(read_input(shapes.WishInput, request))
        return _asked(
            request, name, lambda: instance_cordon(access=self.access, instance=name, terms=terms)
        )


class StopView(_DrainView):
    @extend_schema(
        operation_id="instances_stop",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.DrainInput,
        responses={202: OpenApiResponse(shapes.InstanceDrainSerializer, _ASKED), **ONCE},
        summary="Drain an instance, then end its engine (operators)",
    )
    def post(self, request: Request, name: str) -> Response:
        terms = _terms(read_input(shapes.DrainInput, request))
        return _asked(
            request, name, lambda: instance_stop(access=self.access, instance=name, terms=terms)
        )


class RestartView(_DrainView):
    @extend_schema(
        operation_id="instances_restart",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.DrainInput,
        responses={202: OpenApiResponse(shapes.InstanceDrainSerializer, _ASKED), **ONCE},
        summary="Drain an instance, end its engine, start a new one (operators)",
    )
    def post(self, request: Request, name: str) -> Response:
        return self.renew(request, name, "restart")

    def renew(self, request: Request, name: str, word: str) -> Response:
        terms = _terms(read_input(shapes.DrainInput, request))
        return _asked(
            request,
            name,
            lambda: instance_restart(access=self.access, instance=name, terms=terms, word=word),
        )


class ReplaceView(RestartView):
    @extend_schema(
        operation_id="instances_replace",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.DrainInput,
        responses={202: OpenApiResponse(shapes.InstanceDrainSerializer, _ASKED), **ONCE},
        summary="The same as restart, called replace in the audit (operators)",
    )
    def post(self, request: Request, name: str) -> Response:
        return self.renew(request, name, "replace")


class ReleaseView(_DrainView):
    @extend_schema(
        operation_id="instances_release",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.WishInput,
        responses={202: OpenApiResponse(shapes.InstanceDrainSerializer, _ASKED), **ONCE},
        summary="Let an instance serve again: uncordon, undrain, start it (operators)",
    )
    def post(self, request: Request, name: str) -> Response:
        terms = _terms(read_input(shapes.WishInput, request))
        return _asked(
            request, name, lambda: instance_release(access=self.access, instance=name, terms=terms)
        )


class NodesView(_DrainView):
    @extend_schema(
        operation_id="nodes_list",
        tags=["drains"],
        responses={200: shapes.NodesSerializer},
        summary="All nodes with their instances, of all pools",
    )
    def get(self, request: Request) -> Response:
        return Response({"data": [node_body(node) for node in nodes_list()]})


class NodeView(_DrainView):
    @extend_schema(
        operation_id="nodes_get",
        tags=["drains"],
        responses={200: shapes.NodeSerializer},
        summary="One node: its instances, how far their drains are, whether it is safe to stop",
    )
    def get(self, request: Request, node: str) -> Response:
        return Response(node_body(node_drain_get(node)))


class NodeCordonView(_DrainView):
    @extend_schema(
        operation_id="nodes_cordon",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.WishInput,
        responses={202: OpenApiResponse(shapes.NodeSerializer, _ASKED), **ONCE},
        summary="Let all instances of a node take nothing new (operators)",
    )
    def post(self, request: Request, node: str) -> Response:
        terms = _terms(read_input(shapes.WishInput, request))
        return _asked_of_node(
            request, node, lambda: node_cordon(access=self.access, node=node, terms=terms)
        )


class NodeDrainView(_DrainView):
    @extend_schema(
        operation_id="nodes_drain",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.NodeDrainInput,
        responses={202: OpenApiResponse(shapes.NodeSerializer, _ASKED), **ONCE},
        summary="Drain all instances of a node, later ones included (operators)",
    )
    def post(self, request: Request, node: str) -> Response:
        body = read_input(shapes.NodeDrainInput, request)
        terms, is_stopped = _terms(body), body["stop"]
        return _asked_of_node(
            request,
            node,
            lambda: node_drain(access=self.access, node=node, terms=terms, is_stopped=is_stopped),
        )


class NodeReleaseView(_DrainView):
    @extend_schema(
        operation_id="nodes_release",
        tags=["drains"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.WishInput,
        responses={202: OpenApiResponse(shapes.NodeSerializer, _ASKED), **ONCE},
        summary="Let the instances of a node serve again (operators)",
    )
    def post(self, request: Request, node: str) -> Response:
        terms = _terms(read_input(shapes.WishInput, request))
        return _asked_of_node(
            request, node, lambda: node_release(access=self.access, node=node, terms=terms)
        )


def _asked(request: Request, name: str, act: Callable[[], object]) -> Response:
    def answer() -> Response:
        with transaction.atomic():
            act()
        where = reverse("api-instance-drain", args=[name])
        body = instance_body(instance_drain_get(name))
        return Response(body, status=202, headers={"Location": where})

    return once(request, answer)


def _asked_of_node(request: Request, node: str, act: Callable[[], object]) -> Response:
    def answer() -> Response:
        with transaction.atomic():
            act()
        where = reverse("api-node", args=[node])
        body = node_body(node_drain_now(node))
        return Response(body, status=202, headers={"Location": where})

    return once(request, answer)


def _terms(body: dict[str, Any]) -> Terms:
    return Terms(
        reason=body["reason"],
        deadline_s=body.get("deadline_s"),
        leftover=Leftover(body.get("leftover", Leftover.WAIT.value)),
        version=body.get("version"),
        is_forced=body["force"],
    )


def instance_body(found: InstanceDrain) -> dict[str, Any]:
    """Returns an instance as the API shows it."""
    progress = found.progress
    body = {
        "instance": found.instance,
        "pool": found.pool,
        "node": found.node,
        "state": found.state,
        "cause": found.cause,
        "since_unix_s": found.since_unix_s,
        "wanted": found.wish.wanted.value,
        "wanted_by": found.wish.by,
        "wish": found.own,
        "node_wish": found.of_node,
        "is_renewing": found.is_renewing,
        "is_outdated": found.is_outdated,
        "begun_unix_s": progress.begun_unix_s if progress else None,
        "requests_at_start": progress.requests_at_start if progress else None,
        "left": found.left_total,
        "moving": progress.moving if progress else None,
        "moved": progress.moved if progress else None,
        "ended": progress.ended if progress else None,
        "requests_per_s": found.rate_per_s,
        "last_move_unix_s": found.last_move_unix_s,
        "estimate_s": progress.estimate_s if progress else None,
        "deadline_unix_s": found.wish.deadline_unix_s,
        "leftover": found.wish.leftover.value,
        "obstacle": progress.obstacle if progress else "",
        "report_age_s": found.report_age_s,
        "is_safe_to_stop": found.is_safe,
        "why_not_safe": found.why_not_safe,
        "verified_unix_s": found.verified_unix_s,
        "requests": found.left,
    }
    return dict(shapes.InstanceDrainSerializer(body).data)


def node_body(found: NodeDrain) -> dict[str, Any]:
    """Returns a node as the API shows it."""
    body = {
        "node": found.node,
        "wish": found.row,
        "left": found.left,
        "estimate_s": found.estimate_s,
        "is_safe_to_stop": found.is_safe,
        "why_not_safe": found.why_not_safe,
    }
    shown = shapes.NodeSerializer({**body, "instances": []}).data
    return {**shown, "instances": [instance_body(i) for i in found.instances]}
