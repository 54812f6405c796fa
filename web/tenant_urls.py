"""Addresses of the tenants' pages and of the first steps."""

from django.urls import URLPattern, path

from web.views import (
    tenant_keys,
    tenant_limits,
    tenant_members,
    tenant_slo,
    tenant_usage,
    tenants,
    welcome,
)

TENANT = "tenants/<slug:slug>"
KEY = f"{TENANT}/keys/<str:public_id>"
MEMBER = f"{TENANT}/members/<str:username>"

urlpatterns: list[URLPattern] = [
    path("tenants/", tenants.tenants, name="tenants"),
    # No slug and no username has a tilde.
    path("tenants/~new/", tenants.create, name="tenant-create"),
    path(f"{TENANT}/", tenants.overview, name="tenant"),
    path(f"{TENANT}/block/", tenants.block, name="tenant-block"),
    path(f"{TENANT}/unblock/", tenants.unblock, name="tenant-unblock"),
    path(f"{TENANT}/keys/", tenant_keys.keys, name="tenant-keys"),
    path(f"{TENANT}/keys/new/", tenant_keys.create, name="tenant-key-create"),
    path(f"{KEY}/", tenant_keys.edit, name="tenant-key"),
    path(f"{KEY}/rotate/", tenant_keys.rotate, name="tenant-key-rotate"),
    path(f"{KEY}/revoke/", tenant_keys.revoke, name="tenant-key-revoke"),
    path(f"{TENANT}/limits/", tenant_limits.limits, name="tenant-limits"),
    path(f"{TENANT}/slo/", tenant_slo.slo, name="tenant-slo"),
    path(f"{TENANT}/slo/<str:priority_class>/", tenant_slo.targets, name="tenant-slo-set"),
    path(f"{TENANT}/slo/<str:priority_class>/remove/", tenant_slo.remove, name="tenant-slo-remove"),
    path(f"{TENANT}/usage/", tenant_usage.usage, name="tenant-usage"),
    path(f"{TENANT}/usage.csv", tenant_usage.download, name="tenant-usage-csv"),
    path(f"{TENANT}/members/", tenant_members.members, name="tenant-members"),
    path(f"{TENANT}/members/~add/", tenant_members.add, name="tenant-member-add"),
    path(f"{MEMBER}/", tenant_members.role, name="tenant-member"),
    path(f"{MEMBER}/remove/", tenant_members.remove, name="tenant-member-remove"),
    path("welcome/", welcome.welcome, name="welcome"),
    path("welcome/key/", welcome.first_key, name="welcome-key"),
    path("welcome/leave/", welcome.leave, name="welcome-leave"),
]
