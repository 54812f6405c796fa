"""`/api/v1` of tenants, keys, members, SLOs and classes."""

from django.urls import path

from controlplane.tenants import api, api_keys, api_slos

_TENANT = "tenants/<str:slug>"

urlpatterns = [
    path("me", api.MeView.as_view(), name="api-me"),
    path("tenants", api.TenantsView.as_view(), name="api-tenants"),
    path(_TENANT, api.TenantView.as_view(), name="api-tenant"),
    path(f"{_TENANT}/limits", api.LimitsView.as_view(), name="api-limits"),
    path(f"{_TENANT}/members", api.MembersView.as_view(), name="api-members"),
    path(f"{_TENANT}/members/<str:username>", api.MemberView.as_view(), name="api-member"),
    path(f"{_TENANT}/keys", api_keys.KeysView.as_view(), name="api-keys"),
    path("keys/<str:public_id>", api_keys.KeyView.as_view(), name="api-key"),
    path("keys/<str:public_id>/rotate", api_keys.KeyRotateView.as_view(), name="api-key-rotate"),
    path("keys/<str:public_id>/revoke", api_keys.KeyRevokeView.as_view(), name="api-key-revoke"),
    path(f"{_TENANT}/slos", api_slos.TenantSlosView.as_view(), name="api-tenant-slos"),
    path(
        f"{_TENANT}/slos/<str:priority_class>",
        api_slos.TenantSloView.as_view(),
        name="api-tenant-slo",
    ),
    path("slos", api_slos.SlosView.as_view(), name="api-slos"),
    path("slos/<str:priority_class>", api_slos.SloView.as_view(), name="api-slo"),
    path("classes", api_slos.ClassesView.as_view(), name="api-classes"),
    path("classes/<str:name>", api_slos.ClassView.as_view(), name="api-class"),
]
