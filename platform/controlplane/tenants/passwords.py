"""People's own passwords."""

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from controlplane.audit.services import audit_write
from controlplane.tenants.access import Access


@transaction.atomic
def password_change(*, access: Access, user: AbstractBaseUser, password: str) -> None:
    """Sets the person's own password, which was checked before; the other sessions end with it."""
    user.set_password(password)
    user.save(update_fields=["password"])
    audit_write(access=access, action="password_change", object=user.get_username())
