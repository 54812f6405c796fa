"""Who may see and do what. Pure but for `access_of_user`, which reads the memberships.

Two kinds of roles with the same names. A member's role counts within one tenant; a platform role
counts for all of them and for the pool: a superuser is owner, staff are operators, members of the
group `viewers` see everything and change nothing. What is not allowed by a rule here is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from controlplane.errors import NotAllowed, NotVisible

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

VIEWERS_GROUP: Final = "viewers"
"""Name of the Django group whose members see the whole platform."""


class Role(StrEnum):
    """What somebody may do, in rising order."""

    VIEWER = "viewer"
    """Sees requests, usage, SLOs, keys' hints."""
    OPERATOR = "operator"
    """And acts on requests; of the platform: runs the pools, sets limits, classes and SLOs."""
    TENANT_ADMIN = "tenant_admin"
    """And manages keys and members, but no owners."""
    OWNER = "owner"
    """And manages owners; of the platform: pools, prices, users."""

    @property
    def rank(self) -> int:
        return _RANKS[self]

    def covers(self, needed: "Role") -> bool:
        return self.rank >= needed.rank


_RANKS = {role: rank for rank, role in enumerate(Role)}


class Scope(StrEnum):
    """What a key may be used for."""

    INFERENCE = "inference"
    """/v1."""
    READ = "read"
    """GET on /api/v1: what a viewer of the key's tenant sees."""
    MANAGE = "manage"
    """Every method on /api/v1: what an admin of the key's tenant may do."""


@dataclass(frozen=True, slots=True)
class Access:
    """Somebody's roles, for the length of one call. Fails closed: `Access("x")` sees nothing."""

    who: str
    user_id: int | None = None
    platform: Role | None = None
    tenants: Mapping[int, Role] = field(default_factory=dict)
    """Tenant's row id -> role there."""
    http_request_id: str = ""

    def role_in(self, tenant_id: int | None) -> Role | None:
        """Returns the stronger of the platform's role and the one in the tenant.

        Within a tenant a platform operator acts as its admin, and a platform owner as its owner.
        """
        if tenant_id is None:
            return self.platform
        roles = [role for role in (_inside(self.platform), self.tenants.get(tenant_id)) if role]
        return max(roles, key=lambda role: role.rank, default=None)

    @property
    def sees_all(self) -> bool:
        return self.platform is not None

    def allows(self, needed: Role, tenant_id: int | None = None) -> bool:
        """Says whether the role is there; of the platform when there is no tenant."""
        role = self.role_in(tenant_id)
        return role is not None and role.covers(needed)

    def require(self, needed: Role, tenant_id: int | None = None) -> None:
        """Raises: NotVisible when nothing of it is to be seen, NotAllowed when the role is less."""
        role = self.role_in(tenant_id)
        if role is None:
            raise NotVisible("There is no such thing.")
        if not role.covers(needed):
            raise NotAllowed(f"Needs the {needed.value.replace('_', ' ')} role.")


def _inside(platform: Role | None) -> Role | None:
    return Role.TENANT_ADMIN if platform is Role.OPERATOR else platform


def platform_role(user: "AbstractBaseUser | AnonymousUser") -> Role | None:
    """Returns the role for the whole installation. One query for who is no staff."""
    if not (user.is_authenticated and user.is_active):
        return None
    if getattr(user, "is_superuser", False):
        return Role.OWNER
    if getattr(user, "is_staff", False):
        return Role.OPERATOR
    groups = getattr(user, "groups", None)
    if groups is not None and groups.filter(name=VIEWERS_GROUP).exists():
        return Role.VIEWER
    return None


def access_of_user(user: "AbstractBaseUser | AnonymousUser", http_request_id: str = "") -> Access:
    """Returns what a logged-in person may do; nothing for anybody else. One or two queries."""
    from controlplane.tenants.models import Membership

    if not (user.is_authenticated and user.is_active):
        return Access("anonymous", http_request_id=http_request_id)
    rows = Membership.objects.filter(user_id=user.pk).values_list("tenant_id", "role")
    return Access(
        who=user.get_username(),
        user_id=user.pk,
        platform=platform_role(user),
        tenants={tenant_id: Role(role) for tenant_id, role in rows},
        http_request_id=http_request_id,
    )


def access_of_key(
    *, public_id: str, tenant_id: int, scopes: frozenset[Scope], http_request_id: str = ""
) -> Access:
    """Returns what a key may do on /api/v1: within its own tenant, by its scopes."""
    role = Role.TENANT_ADMIN if Scope.MANAGE in scopes else None
    if role is None and Scope.READ in scopes:
        role = Role.VIEWER
    return Access(
        who=f"key:{public_id}",
        tenants={} if role is None else {tenant_id: role},
        http_request_id=http_request_id,
    )
