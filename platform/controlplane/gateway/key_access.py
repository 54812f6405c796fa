"""Who may come in: what a key allows, and when a request that runs is to end because of it."""

from datetime import UTC, datetime
from typing import Final

from controlplane.gateway.errors import STARTING_RETRY_S, AccessEnded, ApiError
from controlplane.tenants.access import Scope
from controlplane.tenants.key_cache import DatabaseAway, KeyCache
from controlplane.tenants.selectors import KeyPolicy

NO_KEY: Final = "No API key: send it as `Authorization: Bearer sk-...`."


async def authenticate(keys: KeyCache, text: str, address: str) -> KeyPolicy:
    """Returns what a key allows. `address`: of the client.

    Raises: ApiError 401; 403 for one that may not be used here; 503 without a database.
    """
    try:
        policy = await keys.find(text)
    except DatabaseAway:
        raise ApiError(
            503,
            "Keys cannot be checked now: the database does not answer.",
            "database_unavailable",
            retry_after_s=STARTING_RETRY_S,
        ) from None
    if policy is None:
        raise ApiError(401, "This API key is wrong, expired or revoked.", "invalid_api_key")
    if policy.is_blocked:
        raise _denied("The tenant of this API key is blocked.")
    if Scope.INFERENCE not in policy.scopes:
        raise _denied("This API key has no scope `inference`, which /v1 needs.")
    if not policy.allows_address(address):
        raise _denied("This API key may not be used from this address.")
    return policy


async def taken_away(keys: KeyCache, public_id: str) -> AccessEnded | None:
    """Returns why the requests of a key are to end now, None when they may go on.

    Without a database they go on: nobody has said otherwise.
    """
    try:
        policy = await keys.policy_of(public_id)
    except DatabaseAway:
        return None
    if policy is None or not policy.is_active:
        return AccessEnded("The API key of this request was revoked.")
    if policy.expires_at is not None and policy.expires_at <= datetime.now(UTC):
        return AccessEnded("The API key of this request has expired.")
    if policy.is_blocked:
        return AccessEnded("The tenant of this request was blocked.")
    return None


def _denied(message: str) -> ApiError:
    return ApiError(403, message, "permission_denied")
