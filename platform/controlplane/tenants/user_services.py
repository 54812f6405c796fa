"""Changes to people's accounts. All need the platform's owner, and write the audit.

An account has one role on the platform (tenants/access.py) or none; Django keeps it in two flags
and a group. Accounts are closed, not deleted: the audit goes on naming them.
"""

from collections.abc import Mapping
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.audit.services import audit_write
from controlplane.tenants.access import VIEWERS_GROUP, Access, Role

USER_FIELDS: Final = ("email", "is_active", "role")
PLATFORM_ROLES: Final = (Role.VIEWER, Role.OPERATOR, Role.OWNER)


@transaction.atomic
def user_create(
    *,
    access: Access,
    username: str,
    password: str,
    email: str = "",
    role: Role | None = None,
    reason: str = "",
) -> User:
    """Returns a new account. Raises: NotVisible, NotAllowed, ValidationError naming the field."""
    access.require(Role.OWNER)
    user = User(username=username, email=email)
    _check_password(password, user)
    user.set_password(password)
    user.full_clean()
    user.save()
    _set_role(user, role)
    audit_write(
        access=access, action="user_create", object=username, reason=reason, after=_facts(user)
    )
    return user


@transaction.atomic
def user_update(
    *, access: Access, user: User, changes: Mapping[str, Any], reason: str = ""
) -> User:
    """Changes any of USER_FIELDS; a closed account's sessions end at once.

    Raises: NotVisible, NotAllowed, ValidationError, also for the last owner.
    """
    access.require(Role.OWNER)
    current = User.objects.select_for_update().get(pk=user.pk)
    before = _facts(current)
    for name, value in changes.items():
        if name not in USER_FIELDS:
            raise ValidationError({name: "cannot be set"})
        if name != "role":
            setattr(current, name, value)
    current.full_clean(exclude=["password"])
    current.save()
    if "role" in changes:
        _set_role(current, changes["role"])
    if not User.objects.filter(is_superuser=True, is_active=True).exists():
        raise ValidationError("The last owner stays: make somebody else an owner first.")
    after = _facts(current)
    if after != before:
        audit_write(
            access=access, action="user_update", object=current.username, reason=reason,
            before=before, after=after,
        )  # fmt: skip
    return current


@transaction.atomic
def user_set_password(*, access: Access, user: User, password: str, reason: str = "") -> None:
    """Sets somebody's password; their sessions end. Raises: NotVisible, NotAllowed,
    ValidationError."""
    access.require(Role.OWNER)
    _check_password(password, user)
    user.set_password(password)
    user.save(update_fields=["password"])
    audit_write(access=access, action="user_password", object=user.username, reason=reason)


def _check_password(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise ValidationError({"password": error.messages}) from None


def _set_role(user: User, role: Role | None) -> None:
    if role is not None and role not in PLATFORM_ROLES:
        raise ValidationError({"role": "must be viewer, operator or owner"})
    user.is_superuser = role is Role.OWNER
    user.is_staff = role in (Role.OPERATOR, Role.OWNER)
    user.save(update_fields=["is_superuser", "is_staff"])
    viewers, _ = Group.objects.get_or_create(name=VIEWERS_GROUP)
    if role is Role.VIEWER:
        user.groups.add(viewers)
    else:
        user.groups.remove(viewers)


def role_of(user: User) -> Role | None:
    """Returns the role that the account has, or will have once it is open again."""
    if user.is_superuser:
        return Role.OWNER
    if user.is_staff:
        return Role.OPERATOR
    is_viewer = user.groups.filter(name=VIEWERS_GROUP).exists()
    return Role.VIEWER if is_viewer else None


def _facts(user: User) -> dict[str, Any]:
    role = role_of(user)
    return {
        "email": user.email,
        "is_active": user.is_active,
        "role": None if role is None else role.value,
    }
