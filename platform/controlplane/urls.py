from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from controlplane.api import errors

urlpatterns = [
    # Our own page checks the new password and writes the audit.
    path("admin/password_change/", RedirectView.as_view(url="/password/")),
    path("admin/", admin.site.urls),
    path("api/v1/", include("controlplane.api.urls")),
    path("api/v1/", include("controlplane.tenants.urls")),
    path("api/v1/", include("controlplane.usage.urls")),
    path("api/v1/", include("controlplane.audit.urls")),
    path("api/v1/", include("controlplane.fleet.urls")),
    path("api/v1/", include("controlplane.scaling.urls")),
    path("api/v1/", include("controlplane.gateway.urls")),
    path("api/v1/", include("controlplane.whatif.urls")),
    path("", include("web.urls")),
]

# One error shape under /api/; pages keep Django's own (their templates).
handler400 = errors.handler400
handler403 = errors.handler403
handler404 = errors.handler404
handler500 = errors.handler500
