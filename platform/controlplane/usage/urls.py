"""`/api/v1` of usage, prices and SLO reports."""

from django.urls import path

from controlplane.usage import api

urlpatterns = [
    path("usage", api.UsageView.as_view(), name="api-usage"),
    path("tenants/<str:slug>/usage", api.TenantUsageView.as_view(), name="api-tenant-usage"),
    path("prices", api.PricesView.as_view(), name="api-prices"),
    path("slo/report", api.SloReportView.as_view(), name="api-slo-report"),
    path("slo/slow-requests", api.SlowRequestsView.as_view(), name="api-slow-requests"),
]
