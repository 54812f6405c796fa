"""Questions about tenants and keys."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeVar

from django.db.models import Model, Q, QuerySet

from controlplane.errors import NotVisible
from controlplane.tenants.access import Access, Scope
from controlplane.tenants.models import ApiKey, Membership, Slo, Tenant
from engine_pool.types import PriorityClass

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a tenant, over all its keys and all web processes; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens together."""
    concurrency: int | None = None
    monthly_budget: Decimal | None = None
    """Cost in a calendar month (UTC)."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is promised; None: nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


NO_LIMITS: Final = Limits()
NO_TARGET: Final = Target()


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """What a key allows; small enough to be kept in memory for all keys in use."""

    key_id: int
    secret_digest: str
    tenant_id: int
    tenant: str
    default_class: PriorityClass = PriorityClass.NORMAL
    highest_class: PriorityClass = PriorityClass.NORMAL
    expires_at: datetime | None = None
    is_active: bool = True
    """The key is not revoked."""
    is_blocked: bool = False
    """Its tenant's requests are refused."""
    public_id: str = ""
    old_secret_digest: str = ""
    old_until: datetime | None = None
    """While it is rotated, both secrets work until then."""
    weight: float = 1.0
    limits: Limits = NO_LIMITS
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE})
    allowed_models: frozenset[str] | None = None
    """Names that clients use; None: all."""
    allowed_networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """Empty: any."""
    targets: Mapping[PriorityClass, Target] = field(default_factory=dict)
    """Of the tenant's SLOs, or of those for everybody."""

    def allows_model(self, name: str) -> bool:
        return self.allowed_models is None or name in self.allowed_models

    def allows_address(self, address: str) -> bool:
        """Says whether a client at the address may use the key; not with an unreadable one."""
        if not self.allowed_networks:
            return True
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.allowed_networks)


def key_policy(*, public_id: str) -> KeyPolicy | None:
    """Returns what the key allows, None when there is no such key. Two queries."""
    key = ApiKey.objects.select_related("tenant").filter(public_id=public_id).first()
    return None if key is None else _policy_of(key)


def _policy_of(key: ApiKey) -> KeyPolicy:
    tenant = key.tenant
    return KeyPolicy(
        key_id=key.pk,
        public_id=key.public_id,
        secret_digest=key.secret_digest,
        old_secret_digest=key.old_secret_digest,
        old_until=key.old_until,
        tenant_id=tenant.pk,
        tenant=tenant.slug,
        default_class=PriorityClass(tenant.default_class),
        highest_class=PriorityClass(tenant.highest_class),
        weight=tenant.weight,
        limits=limits_of(tenant),
        scopes=frozenset(Scope(scope) for scope in key.scopes),
        allowed_models=_both(tenant.allowed_models, key.allowed_models),
        allowed_networks=tuple(ipaddress.ip_network(text) for text in key.allowed_networks),
        expires_at=key.expires_at,
        is_active=key.revoked_at is None,
        is_blocked=not tenant.is_active,
        targets=targets_of(tenant_id=tenant.pk),
    )


def limits_of(tenant: Tenant) -> Limits:
    return Limits(
        requests_per_minute=tenant.requests_per_minute,
        tokens_per_minute=tenant.tokens_per_minute,
        concurrency=tenant.concurrency,
        monthly_budget=tenant.monthly_budget,
    )


def targets_of(*, tenant_id: int) -> dict[PriorityClass, Target]:
    """Returns a tenant's targets by class; where it has none of its own, those for everybody."""
    found: dict[PriorityClass, Target] = {}
    rows = Slo.objects.filter(Q(tenant_id=tenant_id) | Q(tenant_id=None))
    for slo in sorted(rows, key=lambda slo: slo.tenant_id is not None):
        found[PriorityClass(slo.priority_class)] = Target(slo.ttft_ms, slo.tpot_ms)
    return found


def visible_to(
    access: Access, rows: "QuerySet[M]", tenant_field: str = "tenant_id"
) -> "QuerySet[M]":
    """Returns those of the rows that belong to tenants of which something is to be seen.

    Every query of a page or an API for something that belongs to a tenant goes through here. Whose
    access is empty gets nothing.
    """
    if access.sees_all:
        return rows
    return rows.filter(**{f"{tenant_field}__in": list(access.tenants)})


def tenants_list(*, access: Access) -> "QuerySet[Tenant]":
    return visible_to(access, Tenant.objects.all(), "pk")


def tenant_get(*, access: Access, slug: str) -> Tenant:
    """Raises: NotVisible."""
    return _one(tenants_list(access=access).filter(slug=slug), f"There is no tenant {slug!r}.")


def keys_list(*, access: Access, tenant: Tenant) -> "QuerySet[ApiKey]":
    return visible_to(access, ApiKey.objects.filter(tenant=tenant).select_related("tenant"))


def key_get(*, access: Access, public_id: str) -> ApiKey:
    """Raises: NotVisible."""
    rows = ApiKey.objects.filter(public_id=public_id).select_related("tenant")
    return _one(visible_to(access, rows), f"There is no key {public_id!r}.")


def members_list(*, access: Access, tenant: Tenant) -> "QuerySet[Membership]":
    return visible_to(access, Membership.objects.filter(tenant=tenant).select_related("user"))


def slos_list(*, access: Access) -> "QuerySet[Slo]":
    """Returns the SLOs of visible tenants, and those for everybody, which anybody may see."""
    rows = Slo.objects.select_related("tenant")
    if access.sees_all:
        return rows
    return rows.filter(Q(tenant_id__in=list(access.tenants)) | Q(tenant_id=None))


def _one(rows: "QuerySet[M]", missing: str) -> M:
    found = rows.first()
    if found is None:
        raise NotVisible(missing)
    return found


def _both(first: list[Any], second: list[Any]) -> frozenset[str] | None:
    """Returns what both lists allow; an empty list allows all."""
    if not first or not second:
        only = first or second
        return frozenset(only) if only else None
    return frozenset(first) & frozenset(second)
