"""Addresses of the requests', SLOs', audit's and settings' pages."""

from django.urls import URLPattern, path

from web.views import (
    audit,
    class_settings,
    pool_settings,
    pool_windows,
    pools,
    prices,
    request_cancel,
    request_page,
    requests,
    slo,
)

urlpatterns: list[URLPattern] = [
    path("requests/", requests.requests, name="requests"),
    path("requests/now/", requests.now, name="requests-now"),
    path("requests/<str:request_id>/", request_page.one, name="request"),
    path("requests/<str:request_id>/cancel/", request_cancel.cancel, name="request-cancel"),
    path("slo/", slo.overview, name="slo"),
    path("slo/<slug:slug>/<str:priority_class>/", slo.detail, name="slo-detail"),
    path("audit/", audit.audit, name="audit"),
    path("audit/export.csv", audit.export, name="audit-export"),
    path("pools/", pools.pools, name="pools"),
    path("pools/<slug:name>/settings/", pool_settings.settings, name="pool-settings"),
    path("pools/<slug:name>/windows/", pool_windows.windows, name="pool-windows"),
    path("pools/<slug:name>/windows/<int:number>/", pool_windows.window, name="pool-window"),
    path("pools/<slug:name>/remove/", pool_settings.remove, name="pool-remove"),
    path("settings/classes/", class_settings.classes, name="classes"),
    path("settings/prices/", prices.prices, name="prices"),
]
