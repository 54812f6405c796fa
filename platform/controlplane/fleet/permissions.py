"""Who may see and run the pools: the platform's roles (tenants/access.py)."""

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from controlplane.tenants.access import platform_role


def is_operator(user: AbstractBaseUser | AnonymousUser) -> bool:
    """Says whether the user may run the pools: the platform's operators and owners. No query."""
    is_staff = getattr(user, "is_staff", False) or getattr(user, "is_superuser", False)
    return bool(user.is_authenticated and user.is_active and is_staff)


def is_viewer(user: AbstractBaseUser | AnonymousUser) -> bool:
    """Says whether the user may see the pools: whoever has a role of the platform. One query for
    who is no staff."""
    return platform_role(user) is not None
