"""`/api/v1` of the pool."""

from django.urls import path

from controlplane.fleet import (
    api,
    api_drains,
    api_moves,
    api_pools,
    api_preflight,
    api_rebalancing,
    api_requests,
)

urlpatterns = [
    path("snapshot", api.SnapshotView.as_view(), name="api-snapshot"),
    path("instances", api.InstancesView.as_view(), name="api-instances"),
    path("instances/<str:name>", api.InstanceView.as_view(), name="api-instance"),
    path(
        "instances/<str:name>/drain",
        api_drains.InstanceDrainView.as_view(),
        name="api-instance-drain",
    ),
    path("instances/<str:name>/cordon", api_drains.CordonView.as_view(), name="api-cordon"),
    path("instances/<str:name>/stop", api_drains.StopView.as_view(), name="api-stop"),
    path("instances/<str:name>/restart", api_drains.RestartView.as_view(), name="api-restart"),
    path("instances/<str:name>/replace", api_drains.ReplaceView.as_view(), name="api-replace"),
    path("instances/<str:name>/release", api_drains.ReleaseView.as_view(), name="api-release"),
    path("nodes", api_drains.NodesView.as_view(), name="api-nodes"),
    path("nodes/<str:node>", api_drains.NodeView.as_view(), name="api-node"),
    path("nodes/<str:node>/cordon", api_drains.NodeCordonView.as_view(), name="api-node-cordon"),
    path("nodes/<str:node>/drain", api_drains.NodeDrainView.as_view(), name="api-node-drain"),
    path("nodes/<str:node>/release", api_drains.NodeReleaseView.as_view(), name="api-node-release"),
    path("events", api.EventsView.as_view(), name="api-events"),
    path("history", api.HistoryView.as_view(), name="api-history"),
    path("requests", api_requests.RequestsView.as_view(), name="api-requests"),
    path("requests/<str:request_id>/migrate", api_moves.MigrateView.as_view(), name="api-migrate"),
    path(
        "requests/<str:request_id>/destinations",
        api_moves.DestinationsView.as_view(),
        name="api-destinations",
    ),
    path("migrations", api_moves.MigrationsView.as_view(), name="api-migrations"),
    path("migrations/preflight", api_preflight.PreflightView.as_view(), name="api-preflight"),
    path("migrations/<str:migration_id>", api_moves.MigrationView.as_view(), name="api-migration"),
    path(
        "migrations/<str:migration_id>/cancel",
        api_moves.CancelView.as_view(),
        name="api-migration-cancel",
    ),
    path("rebalancing", api_rebalancing.RebalancingView.as_view(), name="api-rebalancing"),
    path("rebalancing/pause", api_rebalancing.PauseView.as_view(), name="api-rebalancing-pause"),
    path("rebalancing/resume", api_rebalancing.ResumeView.as_view(), name="api-rebalancing-resume"),
    path("pools", api_pools.PoolsView.as_view(), name="api-pools"),
    path("pools/<str:name>", api_pools.PoolView.as_view(), name="api-pool"),
    path("pools/<str:name>/aliases", api_pools.AliasesView.as_view(), name="api-aliases"),
    path("pools/<str:name>/aliases/<str:alias>", api_pools.AliasView.as_view(), name="api-alias"),
]
