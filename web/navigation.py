"""What stands in the navigation, by role: what a person may not see is not there."""

from dataclasses import dataclass
from typing import Final

from django.urls import NoReverseMatch, reverse

from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Tenant

PAGES_OF_A_TENANT: Final = (
    ("tenant", "web:tenant", "Overview", "tenant"),
    ("tenant-keys", "web:tenant-keys", "Keys", "key"),
    ("tenant-usage", "web:tenant-usage", "Usage", "usage"),
    ("tenant-members", "web:tenant-members", "Members", "people"),
)


KEYS: Final = {
    "cluster": "c",
    "requests": "r",
    "migrations": "m",
    "tenants": "t",
    "tenant": "t",
    "tenant-keys": "k",
    "tenant-usage": "u",
    "slo": "l",
    "scaling": "n",
    "whatif": "w",
    "audit": "a",
    "playground": "p",
    "settings": "s",
}
"""`g` and then this leads to the page."""


@dataclass(frozen=True, slots=True)
class Item:
    """One entry. `page`: what the page's context calls itself."""

    page: str
    label: str
    icon: str
    url: str
    key: str = ""
    """What leads there after `g`; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    items: tuple[Item, ...]


def navigation_of(access: Access, pool: str) -> list[Group]:
    """Returns the groups in the order of the questions; for who has no role, none."""
    groups = _platform(access, pool) if access.sees_all else _member(access)
    return [
        Group(title, kept) for title, items in groups if (kept := tuple(i for i in items if i.url))
    ]


def _platform(access: Access, pool: str) -> list[tuple[str, list[Item]]]:
    is_operator = access.allows(Role.OPERATOR)
    return [
        ("Now", [
            _item("cluster", "Cluster", "cluster", "web:cluster"),
            _item("requests", "Requests", "requests", "web:requests"),
            _item("migrations", "Migrations", "moves", "web:migrations"),
        ]),
        ("Who", [
            _item("tenants", "Tenants", "people", "web:tenants"),
            _item("slo", "SLO", "target", "web:slo"),
        ]),
        ("Why", [
            _item("scaling", "Scaling", "scaling", "web:scaling"),
            _item("whatif", "What if", "flask", "web:whatif"),
            _item("audit", "Audit", "audit", "web:audit"),
        ]),
        ("Use", [
            *([_item("playground", "Playground", "chat", "web:playground")] if is_operator else []),
            _item("settings", "Settings", "settings", "web:pool-settings", pool),
            *([_item("admin", "Admin", "admin", "admin:index")] if is_operator else []),
        ]),
    ]  # fmt: skip


def _member(access: Access) -> list[tuple[str, list[Item]]]:
    tenants = list(Tenant.objects.filter(pk__in=list(access.tenants))[:2])
    if len(tenants) == 1:
        tenant = tenants[0]
        who = (
            tenant.name,
            [
                _item(page, label, icon, url, tenant.slug)
                for page, url, label, icon in PAGES_OF_A_TENANT
            ],
        )
    else:
        who = ("Who", [_item("tenants", "Tenants", "people", "web:tenants")])
    may_talk = any(role.covers(Role.OPERATOR) for role in access.tenants.values())
    sees_audit = any(role.covers(Role.TENANT_ADMIN) for role in access.tenants.values())
    return [
        ("Now", [_item("requests", "Requests", "requests", "web:requests")]),
        (who[0], [*who[1], _item("slo", "SLO", "target", "web:slo")]),
        ("Why", [_item("audit", "Audit", "audit", "web:audit")] if sees_audit else []),
        ("Use", [_item("playground", "Playground", "chat", "web:playground")] if may_talk else []),
    ]


def _item(page: str, label: str, icon: str, name: str, *args: str) -> Item:
    try:
        return Item(page, label, icon, reverse(name, args=args), KEYS.get(page, ""))
    except NoReverseMatch:
        # A part that this installation does not have is not offered.
        return Item(page, label, icon, "")
