"""`/api/v1/tenants`, their members, and who the caller is."""

from typing import Any

import redis
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.admission.usage_now import usage_now
from controlplane.api.errors import RETRY_S
from controlplane.api.etags import etag_of, wanted_version
from controlplane.api.idempotency import once
from controlplane.api.inputs import changes_of, read_input, read_query
from controlplane.api.pagination import PageQuery, page_of
from controlplane.api.problem import Problem
from controlplane.api.schema import CHANGED, CONFLICT, IDEMPOTENCY_KEY, IF_MATCH, ONCE
from controlplane.api.shapes import ReasonInput
from controlplane.api.views import ApiView, page_response
from controlplane.errors import NotVisible
from controlplane.tenants import serializers as shapes
from controlplane.tenants.access import Role
from controlplane.tenants.models import Membership, Tenant
from controlplane.tenants.selectors import KeyPolicy, members_list, tenants_list
from controlplane.tenants.services import (
    member_remove,
    member_set,
    tenant_create,
    tenant_update,
)


class TenantsView(ApiView):
    @extend_schema(
        operation_id="tenants_list",
        tags=["tenants"],
        parameters=[shapes.TenantsQuery],
        responses={200: shapes.TenantsOutput},
        summary="Tenants that the caller sees, by slug",
    )
    def get(self, request: Request) -> Response:
        query = read_query(shapes.TenantsQuery, request)
        rows = tenants_list(access=self.access)
        if "state" in query:
            rows = rows.filter(state=query["state"])
        if "q" in query:
            rows = rows.filter(Q(name__icontains=query["q"]) | Q(slug__icontains=query["q"]))
        page = page_of(rows, order="slug", limit=query["limit"], cursor=query.get("cursor"))
        return page_response(page, shapes.TenantOutput)

    @extend_schema(
        operation_id="tenants_create",
        tags=["tenants"],
        parameters=[IDEMPOTENCY_KEY],
        request=shapes.TenantInput,
        responses={201: shapes.TenantOutput, **ONCE},
        summary="Make a tenant (operators of the platform)",
    )
    def post(self, request: Request) -> Response:
        body = read_input(shapes.TenantInput, request)
        self.access.require(Role.OPERATOR)

        def act() -> Response:
            tenant = tenant_create(access=self.access, **body)
            return _one(tenant, 201)

        return once(request, act)


class TenantView(ApiView):
    @extend_schema(
        operation_id="tenants_get",
        tags=["tenants"],
        responses={200: shapes.TenantOutput},
        summary="One tenant",
    )
    def get(self, request: Request, slug: str) -> Response:
        return _one(self.tenant(slug))

    @extend_schema(
        operation_id="tenants_update",
        tags=["tenants"],
        parameters=[IF_MATCH],
        request=shapes.TenantSettings,
        responses={200: shapes.TenantOutput, **CHANGED, **CONFLICT},
        summary="Change a tenant, its limits too (operators of the platform)",
    )
    def patch(self, request: Request, slug: str) -> Response:
        tenant = self.tenant(slug)
        changes, why = changes_of(read_input(shapes.TenantSettings, request, partial=True))
        changed = tenant_update(
            access=self.access,
            tenant=tenant,
            changes=changes,
            version=wanted_version(request),
            reason=why,
        )
        return _one(changed)


class LimitsView(ApiView):
    @extend_schema(
        operation_id="tenant_limits_get",
        tags=["tenants"],
        responses={200: shapes.LimitsOutput},
        summary="A tenant's limits and how full they are now",
    )
    def get(self, request: Request, slug: str) -> Response:
        tenant = self.tenant(slug)
        try:
            use = usage_now(tenant.pk)
        except (redis.RedisError, OSError):
            raise Problem(
                503,
                "The store does not answer; it knows what is used now.",
                code="store_unavailable",
                retry_after_s=RETRY_S,
            ) from None
        return Response(shapes.LimitsOutput(use).data)


class MembersView(ApiView):
    @extend_schema(
        operation_id="members_list",
        tags=["members"],
        parameters=[PageQuery],
        responses={200: shapes.MembersOutput},
        summary="A tenant's members, by name",
    )
    def get(self, request: Request, slug: str) -> Response:
        tenant = self.tenant(slug)
        query = read_query(PageQuery, request)
        rows = members_list(access=self.access, tenant=tenant)
        page = page_of(
            rows, order="user__username", limit=query["limit"], cursor=query.get("cursor")
        )
        return page_response(page, shapes.MemberOutput)


class MemberView(ApiView):
    @extend_schema(
        operation_id="members_put",
        tags=["members"],
        request=shapes.MemberInput,
        responses={
            200: shapes.MemberOutput,
            201: OpenApiResponse(shapes.MemberOutput, "The person was no member before."),
            **CONFLICT,
        },
        summary="Add a member, or give another role (admins; owners only by owners)",
    )
    def put(self, request: Request, slug: str, username: str) -> Response:
        tenant = self.tenant(slug, Role.TENANT_ADMIN)
        body = read_input(shapes.MemberInput, request)
        was_member = members_list(access=self.access, tenant=tenant).filter(user__username=username)
        status = 200 if was_member.exists() else 201
        member = member_set(
            access=self.access,
            tenant=tenant,
            user=_user(username),
            role=Role(body["role"]),
            reason=body["reason"],
        )
        return Response(shapes.MemberOutput(member).data, status=status)

    @extend_schema(
        operation_id="members_remove",
        tags=["members"],
        parameters=[ReasonInput],
        responses={204: OpenApiResponse(description="The person is no member any more.")},
        summary="Remove a member (admins; owners only by owners)",
    )
    def delete(self, request: Request, slug: str, username: str) -> Response:
        tenant = self.tenant(slug, Role.TENANT_ADMIN)
        query = read_query(ReasonInput, request)
        rows = members_list(access=self.access, tenant=tenant)
        member: Membership | None = rows.filter(user__username=username).first()
        if member is None:
            raise NotVisible(f"There is no member {username!r}.")
        member_remove(access=self.access, member=member, reason=query["reason"])
        return Response(status=204)


class MeView(ApiView):
    @extend_schema(
        operation_id="me_get",
        tags=["me"],
        responses={200: shapes.MeOutput},
        summary="Who the caller is, with roles and tenants",
    )
    def get(self, request: Request) -> Response:
        policy, access = request.auth, self.access
        roles: dict[int, Role] = dict(access.tenants)
        tenants = Tenant.objects.filter(pk__in=list(roles)).order_by("slug")
        body: dict[str, Any] = {
            "who": access.who,
            "kind": "key" if isinstance(policy, KeyPolicy) else "user",
            "platform_role": access.platform,
            "scopes": sorted(policy.scopes) if isinstance(policy, KeyPolicy) else [],
            "tenants": [
                {"tenant": t.slug, "name": t.name, "role": roles[t.pk].value} for t in tenants
            ],
        }
        return Response(shapes.MeOutput(body).data)


def _one(tenant: Tenant, status: int = 200) -> Response:
    body = shapes.TenantOutput(tenant).data
    return Response(body, status=status, headers=etag_of(tenant))


def _user(username: str) -> AbstractBaseUser:
    found: AbstractBaseUser | None = (
        get_user_model().objects.filter(username=username, is_active=True).first()
    )
    if found is None:
        raise NotVisible(f"There is no user {username!r}.")
    return found
