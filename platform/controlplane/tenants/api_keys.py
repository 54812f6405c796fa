"""`/api/v1` of keys. A secret is in the answers to create and rotate, and nowhere else."""

from datetime import datetime, timedelta

from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.etags import etag_of, wanted_version
from controlplane.api.idempotency import once
from controlplane.api.inputs import changes_of, read_input, read_query
from controlplane.api.pagination import page_of
from controlplane.api.schema import CHANGED, CONFLICT, IDEMPOTENCY_KEY, IF_MATCH, ONCE
from controlplane.api.shapes import ReasonInput
from controlplane.api.views import NO_STORE, ApiView, page_response
from controlplane.tenants import serializers as shapes
from controlplane.tenants.access import Role
from controlplane.tenants.models import ApiKey
from controlplane.tenants.selectors import key_get, keys_list
from controlplane.tenants.services import key_create, key_revoke, key_rotate, key_update

SECRET = ("key",)


class KeysView(ApiView):
    @extend_schema(
        operation_id="keys_list",
        tags=["keys"],
        parameters=[shapes.KeysQuery],
        responses={200: shapes.KeysOutput},
        summary="A tenant's keys, the newest first",
    )
    def get(self, request: Request, slug: str) -> Response:
        tenant = self.tenant(slug)
        query = read_query(shapes.KeysQuery, request)
        rows = keys_list(access=self.access, tenant=tenant)
        if "state" in query:
            rows = rows.filter(_in_state(query["state"], timezone.now()))
        if "q" in query:
            rows = rows.filter(Q(name__icontains=query["q"]) | Q(public_id=query["q"]))
        if "scope" in query:
            rows = _with_scope(rows, query["scope"])
        page = page_of(
            rows,
            order="-created_at",
            has_times=True,
            limit=query["limit"],
            cursor=query.get("cursor"),
        )
        return page_response(page, shapes.KeyOutput)

    @extend_schema(
        operation_id="keys_create",
        tags=["keys"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.KeyInput,
        responses={
            201: OpenApiResponse(shapes.NewKeyOutput, "`key` is shown only this once."),
            **ONCE,
        },
        summary="Make a key (admins)",
    )
    def post(self, request: Request, slug: str) -> Response:
        tenant = self.tenant(slug, Role.TENANT_ADMIN)
        body = read_input(shapes.KeyInput, request)

        def act() -> Response:
            key, text = key_create(access=self.access, tenant=tenant, **body)
            return _new(key, text, 201)

        return once(request, act, secrets=SECRET)


class KeyView(ApiView):
    @extend_schema(
        operation_id="keys_get",
        tags=["keys"],
        responses={200: shapes.KeyOutput},
        summary="One key, without its secret",
    )
    def get(self, request: Request, public_id: str) -> Response:
        return _one(key_get(access=self.access, public_id=public_id))

    @extend_schema(
        operation_id="keys_update",
        tags=["keys"],
        parameters=[IF_MATCH],
        request=shapes.KeySettings,
        responses={200: shapes.KeyOutput, **CHANGED, **CONFLICT},
        summary="Change a key's name, scopes, models, networks or expiry (admins)",
    )
    def patch(self, request: Request, public_id: str) -> Response:
        key = key_get(access=self.access, public_id=public_id)
        changes, why = changes_of(read_input(shapes.KeySettings, request, partial=True))
        changed = key_update(
            access=self.access,
            key=key,
            changes=changes,
            version=wanted_version(request),
            reason=why,
        )
        return _one(changed)


class KeyRotateView(ApiView):
    @extend_schema(
        operation_id="keys_rotate",
        tags=["keys"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.KeyRotateInput,
        responses={
            200: OpenApiResponse(shapes.NewKeyOutput, "`key` is shown only this once."),
            **ONCE,
        },
        summary="Give a key a new secret; the old one works on for a while (admins)",
    )
    def post(self, request: Request, public_id: str) -> Response:
        key = key_get(access=self.access, public_id=public_id)
        self.access.require(Role.TENANT_ADMIN, key.tenant_id)
        body = read_input(shapes.KeyRotateInput, request)

        def act() -> Response:
            old_until = timezone.now() + timedelta(seconds=body["overlap_s"])
            changed, text = key_rotate(
                access=self.access, key=key, old_until=old_until, reason=body["reason"]
            )
            return _new(changed, text, 200)

        return once(request, act, secrets=SECRET)


class KeyRevokeView(ApiView):
    @extend_schema(
        operation_id="keys_revoke",
        tags=["keys"],
        request=ReasonInput,
        responses={200: shapes.KeyOutput, **CONFLICT},
        summary="End a key with both secrets, for good (admins)",
    )
    def post(self, request: Request, public_id: str) -> Response:
        key = key_get(access=self.access, public_id=public_id)
        body = read_input(ReasonInput, request)
        return _one(key_revoke(access=self.access, key=key, reason=body["reason"]))


def _in_state(state: str, now: datetime) -> Q:
    revoked, expired = Q(revoked_at__isnull=False), Q(expires_at__lte=now)
    if state == "revoked":
        return revoked
    is_past = expired & ~revoked
    return (
        is_past if state == "expired" else ~revoked & (Q(expires_at=None) | Q(expires_at__gt=now))
    )


def _with_scope(rows: "QuerySet[ApiKey]", scope: str) -> "QuerySet[ApiKey]":
    # Not every database can look into a JSON list; scopes are few words, none part of another.
    return rows.filter(scopes__icontains=f'"{scope}"')


def _one(key: ApiKey) -> Response:
    return Response(shapes.KeyOutput(key).data, headers=etag_of(key))


def _new(key: ApiKey, text: str, status: int) -> Response:
    body = shapes.NewKeyOutput(key, context={"text": text}).data
    return Response(body, status=status, headers={**etag_of(key), **NO_STORE})
