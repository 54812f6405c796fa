"""The pages."""

from django.urls import URLPattern, URLResolver, path

from web import ledger_urls, tenant_urls
from web.views import (
    cluster,
    drains,
    events,
    instances,
    migrations,
    move_dialog,
    nodes,
    playground,
    preflight,
    rebalancing,
    scaling,
    session,
    status,
    whatif,
)

app_name = "web"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", session.home, name="home"),
    path("favicon.ico", session.favicon, name="favicon"),
    path("login/", session.LoginView.as_view(), name="login"),
    path("logout/", session.LogoutView.as_view(), name="logout"),
    path("password/", session.password, name="password"),
    path("theme/", session.theme, name="theme"),
    path("cluster/", cluster.cluster, name="cluster"),
    path("cluster/requests/", instances.requests, name="cluster-requests"),
    path("instances/<str:name>/", instances.instance, name="instance"),
    path("instances/<str:name>/<slug:action>/", drains.instance_action, name="instance-action"),
    path("nodes/<str:node>/", nodes.node, name="node"),
    path("nodes/<str:node>/<slug:action>/", drains.node_action, name="node-action"),
    path("requests/<str:request_id>/migrate/", move_dialog.migrate, name="migrate"),
    path("migrations/", migrations.migrations, name="migrations"),
    path("migrations/preflight/", preflight.preflight, name="preflight"),
    path("migrations/<str:migration_id>/", migrations.migration, name="migration"),
    path("migrations/<str:migration_id>/cancel/", migrations.cancel, name="migration-cancel"),
    *ledger_urls.urlpatterns,
    path("scaling/", scaling.scaling, name="scaling"),
    path("scaling/mode/", scaling.mode, name="scaling-mode"),
    path("scaling/<slug:key>/", scaling.decision, name="scaling-decision"),
    path("whatif/", whatif.whatif, name="whatif"),
    path("whatif/<slug:run_id>/", whatif.run, name="whatif-run"),
    path("whatif/<slug:run_id>/cancel/", whatif.cancel, name="whatif-cancel"),
    path(
        "whatif/<slug:run_id>/scenario.toml",
        whatif.scenario_file,
        {"side": "scenario"},
        name="whatif-scenario",
    ),
    path(
        "whatif/<slug:run_id>/baseline.toml",
        whatif.scenario_file,
        {"side": "baseline"},
        name="whatif-baseline",
    ),
    path("rebalancing/pause/", rebalancing.pause, name="rebalancing-pause"),
    path("rebalancing/resume/", rebalancing.resume, name="rebalancing-resume"),
    path("events/", events.events, name="events"),
    path("live/snapshot/", status.live_snapshot, name="live-snapshot"),
    path("status/", status.status, name="status"),
    path("playground/", playground.playground, name="playground"),
    path("playground/stream/", playground.stream, name="playground-stream"),
    path("playground/stop/", playground.stop, name="playground-stop"),
    *tenant_urls.urlpatterns,
]
