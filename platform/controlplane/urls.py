from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("controlplane.fleet.urls")),
    path("api/v1/", include("controlplane.whatif.urls")),
    path("", include("web.urls")),
]
