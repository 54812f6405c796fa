"""`/api/v1` of the audit."""

from django.urls import path

from controlplane.audit import api

urlpatterns = [path("audit", api.AuditView.as_view(), name="api-audit")]
