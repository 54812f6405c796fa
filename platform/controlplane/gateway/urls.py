"""`/api/v1` of single requests; the list: fleet/api_requests.py."""

from django.urls import path

from controlplane.gateway import api_requests

urlpatterns = [
    path("requests/<str:request_id>", api_requests.RequestView.as_view(), name="api-request"),
    path(
        "requests/<str:request_id>/cancel",
        api_requests.CancelView.as_view(),
        name="api-request-cancel",
    ),
]
