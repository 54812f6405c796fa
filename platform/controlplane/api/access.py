"""What a caller of /api/v1 may do, and the permissions that views name."""

from typing import TYPE_CHECKING, Final

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.api.problem import Problem
from controlplane.middleware import request_id_of
from controlplane.tenants.access import Access, Role, Scope, access_of_key, access_of_user
from controlplane.tenants.selectors import KeyPolicy

if TYPE_CHECKING:
    from rest_framework.views import APIView

NO_KEYS: Final = (
    "Keys do not reach the pool: this needs the session of somebody with a role of the platform."
)


def access_of(request: Request) -> Access:
    """Returns the caller's roles. Up to three queries, the first time."""
    known: Access | None = getattr(request, "_access", None)
    if known is None:
        known = _read(request)
        request._access = known  # type: ignore[attr-defined]
    return known


def _read(request: Request) -> Access:
    http_request_id = request_id_of(request._request)
    policy = request.auth
    if not isinstance(policy, KeyPolicy):
        return access_of_user(request.user, http_request_id)
    return access_of_key(
        public_id=policy.public_id,
        tenant_id=policy.tenant_id,
        scopes=policy.scopes,
        http_request_id=http_request_id,
    )


class IsKnown(BasePermission):
    """Lets in who is logged in, and keys with the scope for the method."""

    def has_permission(self, request: Request, view: "APIView") -> bool:
        """Raises: Problem 403 naming the scope that a key lacks."""
        policy = request.auth
        if not isinstance(policy, KeyPolicy):
            return bool(request.user and request.user.is_authenticated)
        needed = [Scope.MANAGE]
        if request.method in SAFE_METHODS:
            needed.insert(0, Scope.READ)
        if not policy.scopes.intersection(needed):
            words = " or ".join(needed)
            raise Problem(
                403, f"This key lacks the scope for this: {words}.", code="permission_denied"
            )
        return True


class IsPlatform(BasePermission):
    """The platform's viewers may read; to change something takes an operator. No keys."""

    message = "Needs the operator role."

    def has_permission(self, request: Request, view: "APIView") -> bool:
        """Raises: Problem 403 for a key."""
        if not (request.user and request.user.is_authenticated):
            return False
        if isinstance(request.auth, KeyPolicy):
            raise Problem(403, NO_KEYS, code="permission_denied")
        needed = Role.VIEWER if request.method in SAFE_METHODS else Role.OPERATOR
        return access_of(request).allows(needed)
