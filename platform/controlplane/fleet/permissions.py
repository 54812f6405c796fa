"""Who may see and run the pool: the operators."""

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView


def is_operator(user: AbstractBaseUser | AnonymousUser) -> bool:
    """Says whether the user may see the pool: an active account of the staff."""
    return bool(user.is_authenticated and user.is_active and getattr(user, "is_staff", False))


class IsOperator(BasePermission):
    message = "Needs the operator role."

    def has_permission(self, request: Request, view: APIView) -> bool:
        return is_operator(request.user)
