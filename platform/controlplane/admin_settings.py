"""How the admin looks: names, the pages' accent, and the sidebar in groups."""

from typing import Any, Final

from django.templatetags.static import static
from django.urls import reverse_lazy

_GROUPS: Final = (
    ("Tenants", (
        ("Tenants", "groups", "tenants_tenant"),
        ("Members", "badge", "tenants_membership"),
        ("API keys", "key", "tenants_apikey"),
        ("SLOs", "speed", "tenants_slo"),
        ("Priority classes", "low_priority", "tenants_classsettings"),
    )),
    ("Pools", (
        ("Pools", "dns", "fleet_pool"),
        ("Model aliases", "alternate_email", "fleet_modelalias"),
        ("Scaling windows", "schedule", "scaling_scalingwindow"),
        ("Wanted instances", "flag", "fleet_wantedinstance"),
        ("Wanted nodes", "flag", "fleet_wantednode"),
        ("Prices", "payments", "usage_modelprice"),
    )),
    ("What was", (
        ("Requests", "list_alt", "gateway_requestrecord"),
        ("Usage by the hour", "bar_chart", "usage_usagehour"),
        ("Usage by the day", "calendar_month", "usage_usageday"),
        ("SLO periods", "monitoring", "usage_slominutes"),
        ("Scaling decisions", "trending_up", "scaling_scalingdecision"),
        ("Scaling states", "timer", "scaling_scalingstate"),
        ("Moves", "swap_horiz", "fleet_migrationrecord"),
        ("Events", "event_note", "fleet_fleeteventrecord"),
        ("What-if runs", "science", "whatif_simulationrun"),
    )),
    ("Security", (
        ("Audit", "gavel", "audit_auditentry"),
        ("Accounts", "person", "auth_user"),
        ("Groups", "group", "auth_group"),
        ("Logins", "login", "axes_accesslog"),
        ("Failed logins", "lock_clock", "axes_accessattempt"),
        ("Idempotent calls", "repeat_one", "management_api_idempotentcall"),
    )),
)  # fmt: skip
"""Title -> (what, icon, model) of its links."""


def _group(title: str, links: tuple[tuple[str, str, str], ...]) -> dict[str, Any]:
    items = [
        {"title": what, "icon": icon, "link": reverse_lazy(f"admin:{model}_changelist")}
        for what, icon, model in links
    ]
    return {"title": title, "separator": True, "items": items}


UNFOLD: Final[dict[str, Any]] = {
    "SITE_TITLE": "Ferry admin",
    "SITE_HEADER": "Ferry",
    "SITE_SUBHEADER": "Admin",
    "SITE_URL": "/cluster/",
    "SITE_ICON": lambda request: static("img/favicon.svg"),
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("img/favicon.svg")}
    ],
    "SITE_DROPDOWN": [
        {"icon": "grid_view", "title": "Cluster", "link": "/cluster/"},
        {"icon": "chat", "title": "Playground", "link": "/playground/"},
    ],
    "SHOW_HISTORY": True,
    "SIDEBAR": {
        "show_search": True,
        "navigation": [_group(title, links) for title, links in _GROUPS],
    },
    # The pages' accent (static/css/tokens.css), from light to dark.
    "COLORS": {
        "primary": {
            "50": "#E3EDFA",
            "100": "#CFE0F6",
            "200": "#A9C8EF",
            "300": "#82B4FC",
            "400": "#5A9CFA",
            "500": "#2F7DC2",
            "600": "#0A4A9E",
            "700": "#083B7F",
            "800": "#0B3D75",
            "900": "#12263F",
            "950": "#0B1520",
        }
    },
}
