from django.urls import path

from controlplane.scaling import api

urlpatterns = [
    path("scaling/decisions", api.DecisionsView.as_view(), name="api-scaling-decisions"),
    path("pools/<str:name>/scaling", api.PoolScalingView.as_view(), name="api-pool-scaling"),
    path("pools/<str:name>/windows", api.WindowsView.as_view(), name="api-pool-windows"),
    path("pools/<str:name>/windows/<str:window>", api.WindowView.as_view(), name="api-pool-window"),
]
