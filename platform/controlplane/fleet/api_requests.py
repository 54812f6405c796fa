"""`/api/v1/requests`: what runs and waits now, and what has ended."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.inputs import read_query
from controlplane.api.pagination import page_of
from controlplane.api.views import ApiView
from controlplane.fleet.observer import Observer
from controlplane.fleet.watch import Watch, fleet_watch
from controlplane.gateway.live_requests import Facts, facts_of, may_see, public_id
from controlplane.gateway.request_shapes import (
    EMPTY,
    ENDED,
    LIVE,
    RUNNING,
    WAITING,
    RequestListOutput,
    RequestsQuery,
    record_row,
)
from controlplane.tenants.access import Access
from controlplane.tenants.selectors import key_get, tenant_get
from controlplane.usage.selectors import RequestFilters, requests_list
from engine_pool.client import served_clients
from engine_pool.errors import StoreUnavailable


class RequestsView(ApiView):
    @extend_schema(
        operation_id="requests_list",
        tags=["requests"],
        parameters=[RequestsQuery],
        responses={200: RequestListOutput},
        summary="Requests: those that run or wait now, or by `state` those that have ended",
    )
    def get(self, request: Request) -> Response:
        query = read_query(RequestsQuery, request)
        # First of all: whose tenant it is not learns nothing else.
        tenant = tenant_get(access=self.access, slug=query["tenant"]) if "tenant" in query else None
        if query["state"] not in (LIVE, RUNNING, WAITING):
            return _ended(self.access, query, None if tenant is None else tenant.pk)
        found = [
            row
            for row in live_rows(self.access, query.get("instance"), query.get("pool", ""))
            if _matches(row, query, None if tenant is None else tenant.slug)
        ]
        limit = query["limit"]
        body = {"requests": found[:limit], "left_out": max(0, len(found) - limit)}
        return Response(RequestListOutput({**body, "has_more": False, "next_cursor": None}).data)


def live_rows(access: Access, instance: str | None = None, pool: str = "") -> list[dict[str, Any]]:
    """Returns what runs or waits and may be seen, by pool and instance.

    Raises: ValidationError for an unknown instance; NotVisible for an unknown pool;
    StoreUnavailable when it cannot be told whose they are; the platform's people get them without
    that.
    """
    observers = [watch.observer for watch in _watches(pool)]
    if instance is not None and not any(instance in o.look().rows for o in observers):
        raise ValidationError(f"instance: there is no instance {instance!r}")
    rows = [
        row
        for observer in observers
        for name in observer.look().rows
        if instance in (None, name)
        for row in _reported(observer, name)
    ]
    try:
        facts = facts_of(row["public_id"] for row in rows)
    except StoreUnavailable:
        if not access.sees_all:
            raise
        facts = {}
    return [
        _told(row, facts.get(row["public_id"]))
        for row in rows
        if may_see(access, facts.get(row["public_id"]))
    ]


def _ended(access: Access, query: dict[str, Any], tenant_id: int | None) -> Response:
    key = key_get(access=access, public_id=query["key"]) if "key" in query else None
    filters = RequestFilters(
        tenant_id=tenant_id,
        status="" if query["state"] == ENDED else query["state"],
        priority_class=query.get("priority_class", ""),
        model=query.get("model", ""),
        pool=query.get("pool", ""),
        key_id=None if key is None else key.pk,
        instance=query.get("instance", ""),
        since=query.get("since"),
        until=query.get("until"),
        missed_only=query["missed"],
        replayed_only=query["replayed"],
        search=query.get("q", ""),
    )
    rows = requests_list(access=access, filters=filters).select_related("tenant")
    page = page_of(
        rows,
        order="-arrived_at",
        has_times=True,
        limit=query["limit"],
        cursor=query.get("cursor"),
    )
    body = {"requests": [record_row(r) for r in page.rows], "left_out": 0}
    body |= {"has_more": page.next_cursor is not None, "next_cursor": page.next_cursor}
    return Response(RequestListOutput(body).data)


def _matches(row: dict[str, Any], query: dict[str, Any], tenant: str | None) -> bool:
    wanted = {
        "tenant": tenant,
        "state": None if query["state"] == LIVE else query["state"],
        "priority_class": query.get("priority_class"),
        "model": query.get("model"),
    }
    begin = query.get("q", "")
    ids = (row["request_id"], row["public_id"])
    return all(value in (None, row[name]) for name, value in wanted.items()) and any(
        i.startswith(begin) for i in ids
    )


def _watches(pool: str) -> list[Watch]:
    if pool:
        return [fleet_watch(pool)]
    return [fleet_watch(client.config.pool) for client in served_clients()] or [fleet_watch()]


def _reported(observer: Observer, name: str) -> Iterator[dict[str, Any]]:
    load = observer.load(name)
    if load is None:
        return
    for state, listed in ((RUNNING, load.running), (WAITING, load.waiting)):
        for r in listed:
            yield {
                **EMPTY,
                "request_id": r.request_id,
                "public_id": public_id(r.request_id),
                "instance": name,
                "instances": [name],
                "state": state,
                "priority_class": r.priority_class.value,
                "kv_tokens": r.kv_tokens,
                "prompt_tokens": r.prompt_tokens,
                "output_tokens": r.output_tokens,
                "preemptions": r.preemptions,
                "at_unix_s": load.at_unix_s,
            }


def _told(row: dict[str, Any], facts: Facts | None) -> dict[str, Any]:
    if facts is None:
        return row
    return {
        **row,
        "tenant": facts.tenant,
        "model": facts.model,
        "pool": facts.pool,
        "endpoint": facts.endpoint,
        "arrived_at": datetime.fromtimestamp(facts.created_unix_s, UTC),
    }
