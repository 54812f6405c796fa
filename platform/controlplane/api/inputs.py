"""Reads bodies and queries: unknown fields are refused, errors name the first wrong one."""

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.serializers import Serializer

from controlplane.api.errors import first_message


def read_input(
    shape: type[Serializer[object]], request: Request, *, partial: bool = False
) -> dict[str, Any]:
    """Returns the checked body; with `partial`, only the fields that were sent.

    Raises: ValidationError naming a field.
    """
    sent = request.data
    if not isinstance(sent, dict):
        raise ValidationError("The body must be a JSON object.")
    return _checked(shape(data=sent, partial=partial), sent)


def read_query(shape: type[Serializer[object]], request: Request) -> dict[str, Any]:
    """Returns the checked query. Raises: ValidationError naming a field."""
    return _checked(shape(data=request.query_params), request.query_params)


def _checked(body: Serializer[object], sent: Any) -> dict[str, Any]:
    known = list(body.get_fields())
    if unknown := sorted(set(sent) - set(known)):
        raise ValidationError(f"{unknown[0]}: there is no such field; known: {', '.join(known)}")
    if not body.is_valid():
        name, why = next(iter(body.errors.items()))
        raise ValidationError(f"{name}: {first_message(why)}")
    return dict(body.validated_data)


def changes_of(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns what a PATCH changes, and why."""
    return {k: v for k, v in body.items() if k != "reason"}, body.get("reason", "")
