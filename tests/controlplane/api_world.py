"""Two tenants with everything that can belong to one, and all kinds of callers of `/api/v1`."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import Client
from django.utils import timezone

from controlplane.api.authentication import attempts
from controlplane.fleet.models import Pool
from controlplane.gateway.models import RequestRecord, RequestStatus
from controlplane.scaling.models import ScalingWindow
from controlplane.tenants.access import VIEWERS_GROUP, Access, Role, Scope
from controlplane.tenants.models import ApiKey, Slo, Tenant
from controlplane.tenants.services import key_create, member_set, slo_set, tenant_create

SYSTEM: Final = Access("setup", platform=Role.OWNER)
JSON: Final = "application/json"


@dataclass
class TenantWorld:
    """One tenant, with the names that must never be told to another."""

    tenant: Tenant
    keys: dict[str, ApiKey]
    texts: dict[str, str]
    """Scope -> a key's text."""
    members: dict[Role, User]
    request_id: str

    @property
    def canaries(self) -> set[str]:
        """Whatever names this tenant, its things and its people."""
        names = {self.tenant.slug, self.tenant.name, self.request_id}
        names |= {key.public_id for key in self.keys.values()}
        names |= {key.name for key in self.keys.values()}
        return names | {user.username for user in self.members.values()}


@dataclass
class Caller:
    """Somebody who calls the API."""

    name: str
    client: Client = field(default_factory=Client)
    headers: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Returns the answer; `headers`: with _ for -."""
        sent = {**self.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        url = path if path.startswith("/") else f"/api/v1/{path}"
        if method == "GET":
            return self.client.get(url, body or {}, headers=sent)
        return self.client.generic(method, url, _json(body), content_type=JSON, headers=sent)


def _json(body: Any) -> str:
    import json

    return "" if body is None else json.dumps(body)


def tenant_world(word: str) -> TenantWorld:
    """Makes a tenant called after a word, with keys, members of each role, an SLO and a request."""
    tenant = tenant_create(access=SYSTEM, name=f"Tenant {word}", slug=word)
    keys, texts = {}, {}
    for scope in Scope:
        key, text = key_create(
            access=SYSTEM, tenant=tenant, name=f"{word}-{scope.value}", scopes=[scope.value]
        )
        keys[scope.value], texts[scope.value] = key, text
    members = {}
    for role in Role:
        user = User.objects.create_user(f"{word}-{role.value}")
        member_set(access=SYSTEM, tenant=tenant, user=user, role=role)
        members[role] = user
    slo_set(access=SYSTEM, tenant=tenant, priority_class="high", changes={"ttft_ms": 500.0})
    record = request_record(tenant, keys["inference"])
    return TenantWorld(tenant, keys, texts, members, record.request_id)


def request_record(tenant: Tenant, key: ApiKey, **changes: Any) -> RequestRecord:
    """Makes a request that ended well, but missed its target."""
    now = timezone.now()
    plain: dict[str, Any] = {
        "request_id": f"chatcmpl-{secrets.token_hex(16)}",
        "tenant": tenant,
        "key_id": key.pk,
        "model": "tiny",
        "endpoint": "chat",
        "priority_class": "normal",
        "status": RequestStatus.COMPLETED,
        "instance": "i-01",
        "instances": ["i-01"],
        "prompt_tokens": 100,
        "output_tokens": 50,
        "cost": Decimal("0.25"),
        "arrived_at": now - timedelta(minutes=10),
        "ended_at": now - timedelta(minutes=9),
        "duration_ms": 60_000.0,
        "ttft_ms": 900.0,
        "ttft_target_ms": 500.0,
        "is_ttft_met": False,
    }
    return RequestRecord.objects.create(**{**plain, **changes})


@contextmanager
def connection_kept() -> Iterator[None]:
    """Lets calls of the WSGI application leave the test's own connection, and its transaction,
    open; Django's test client does the same for its calls."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    try:
        yield
    finally:
        for signal in (request_started, request_finished):
            signal.connect(close_old_connections)


def forget_attempts() -> None:
    """Lets wrong keys of other tests not count."""
    attempts.forget()


def by_key(name: str, text: str) -> Caller:
    return Caller(name, headers={"Authorization": f"Bearer {text}"})


def by_session(name: str, user: User) -> Caller:
    caller = Caller(name)
    caller.client.force_login(user)
    return caller


def platform_user(role: Role) -> User:
    """Makes somebody with a role of the whole platform."""
    user: User = User.objects.create_user(f"platform-{role.value}")
    user.is_staff = role is not Role.VIEWER
    user.is_superuser = role is Role.OWNER
    user.save()
    if role is Role.VIEWER:
        user.groups.add(Group.objects.get_or_create(name=VIEWERS_GROUP)[0])
    return user


def a_pool(name: str = "default") -> Pool:
    return Pool.objects.get_or_create(name=name, defaults={"served_model_name": "tiny"})[0]


def a_window() -> ScalingWindow:
    """Makes a window of the pool's schedule."""
    values = {"begins": "08:00", "ends": "12:00", "min_instances": 2}
    return ScalingWindow.objects.get_or_create(pool=a_pool(), name="mornings", defaults=values)[0]


def everybodys_slo() -> Slo:
    return slo_set(access=SYSTEM, tenant=None, priority_class="low", changes={"tpot_ms": 80.0})
