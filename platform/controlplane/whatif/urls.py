"""`/api/v1/whatif`."""

from django.urls import path

from controlplane.whatif import api

urlpatterns = [
    path("whatif", api.RunsView.as_view(), name="api-whatif"),
    path("whatif/<str:run_id>", api.RunView.as_view(), name="api-whatif-run"),
    path("whatif/<str:run_id>/cancel", api.CancelView.as_view(), name="api-whatif-cancel"),
]
