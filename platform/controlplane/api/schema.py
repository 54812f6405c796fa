"""How the OpenAPI schema says what every operation may answer."""

from typing import Any, Final, Literal

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.serializers import Serializer

from controlplane.api.shapes import ErrorSerializer

ALWAYS: Final = {
    "400": "A field, a parameter or a header is wrong; `param` names it.",
    "401": "No session and no key, or a wrong, expired or revoked key.",
    "403": "The role or the key's scope does not reach; or no CSRF token with a session.",
    "404": "There is no such thing, or not for this caller: both look alike.",
    "406": "The Accept header names nothing that there is.",
    "429": "Too many calls with wrong keys. `Retry-After` says when to try again.",
    "503": "A part is away: database, store or pool. `Retry-After` says when to try again.",
}
WITH_BODY: Final = {
    "413": "The body is too large.",
    "415": "The body is not JSON.",
}
_STALE: Final = "It was changed since it was read; read it again and repeat the change."
CHANGED: Final = {
    412: OpenApiResponse(ErrorSerializer, _STALE),
    428: OpenApiResponse(ErrorSerializer, "If-Match is missing."),
}
CONFLICT: Final = {
    409: OpenApiResponse(ErrorSerializer, "Refused as things are; `code` says why."),
}
ONCE: Final = {
    **CONFLICT,
    422: OpenApiResponse(ErrorSerializer, "The Idempotency-Key was used for another call."),
}

IF_MATCH: Final = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    required=True,
    description="The ETag of what was read, or `*` to overwrite whatever is there now.",
)
IDEMPOTENCY_KEY: Final = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="1 to 255 characters of your own. The same call with the same key within 24 h is "
    "done once and answered again (`Idempotent-Replayed: true`), without secrets.",
)


POOL: Final = OpenApiParameter(
    "pool", str, OpenApiParameter.QUERY, description="Of this pool; left out: the first one."
)


class ApiSchema(AutoSchema):
    """Adds the errors that any operation may answer, and the choice of a pool."""

    def get_override_parameters(
        self,
    ) -> list[OpenApiParameter | Serializer[Any] | type[Serializer[Any]]]:
        found = super().get_override_parameters()
        return [*found, POOL] if getattr(self.view, "looks_at_pool", False) else found

    def _get_response_bodies(
        self, direction: Literal["request", "response"] = "response"
    ) -> dict[str, Any]:
        responses: dict[str, Any] = super()._get_response_bodies(direction)
        common = ALWAYS | (WITH_BODY if self.method in ("POST", "PUT", "PATCH") else {})
        for status, why in common.items():
            if status not in responses:
                responses[status] = self._get_response_for_code(
                    OpenApiResponse(ErrorSerializer, why), status, ["application/json"]
                )
        return dict(sorted(responses.items()))


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Bearer keys, for the docs page's "Authorize"."""

    target_class = "controlplane.api.authentication.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "sk-..."}
