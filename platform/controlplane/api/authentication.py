"""Who calls /api/v1: a person by session (writes need the CSRF token), or a key as Bearer.

A call with an Authorization header is the key's alone: a wrong one is a 401, never the session's.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from controlplane.api.attempts import Attempts
from controlplane.api.last_used import LastUsed
from controlplane.api.problem import Problem
from controlplane.tenants.keys import PresentedKey, parse_key
from controlplane.tenants.selectors import KeyPolicy, key_policy

WRONG: Final = "This API key is wrong, expired or revoked."
"""The same for all three, and for one that may not come from this address."""

attempts = Attempts()
last_used = LastUsed()


@dataclass(frozen=True, slots=True)
class KeyUser:
    """A key in the place of a person: it is logged in, and has no role of the platform."""

    public_id: str
    is_authenticated: bool = True
    is_active: bool = True
    is_staff: bool = False
    is_superuser: bool = False
    is_anonymous: bool = False
    pk: None = None

    def get_username(self) -> str:
        return f"key:{self.public_id}"


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer sk-...`. Two queries a call: a revoked key stops at once."""

    def authenticate(self, request: Request) -> tuple[KeyUser, KeyPolicy] | None:
        """Raises: Problem 401 for a wrong key, 403 for a blocked tenant's, 429 after many."""
        header = request.headers.get("Authorization")
        if header is None:
            return None
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer":
            raise _wrong("Send the key as `Authorization: Bearer sk-...`.")
        address = request.META.get("REMOTE_ADDR", "")
        presented = parse_key(text.strip())
        public_id = presented.public_id if presented else ""
        if (wait_s := attempts.wait_s(address, public_id)) > 0:
            raise Problem(
                429,
                "Too many calls with a wrong key from this address; wait before the next one.",
                code="rate_limit_exceeded",
                retry_after_s=wait_s,
            )
        policy = _checked(presented, address)
        if policy is None:
            attempts.note_failure(address, public_id)
            raise _wrong(WRONG)
        if policy.is_blocked:
            raise Problem(403, "This tenant is blocked.", code="tenant_blocked")
        last_used.note(policy.key_id)
        return KeyUser(policy.public_id), policy

    def authenticate_header(self, request: Request) -> str:
        return BEARER


BEARER: Final = 'Bearer realm="ferry"'


def is_live(policy: KeyPolicy, presented: PresentedKey, now: datetime) -> bool:
    """Says whether a key is right and works at a time, by either of its secrets."""
    # Both are compared always, so that the time tells nothing of a rotation.
    is_new = presented.matches(policy.secret_digest)
    is_old = presented.matches(policy.old_secret_digest)
    is_rotating = policy.old_until is not None and now < policy.old_until
    is_expired = policy.expires_at is not None and policy.expires_at <= now
    return policy.is_active and not is_expired and (is_new or (is_old and is_rotating))


def _checked(presented: PresentedKey | None, address: str) -> KeyPolicy | None:
    if presented is None or "\x00" in presented.public_id:
        return None
    policy = key_policy(public_id=presented.public_id)
    if policy is None or not is_live(policy, presented, timezone.now()):
        return None
    return policy if policy.allows_address(address) else None


def _wrong(message: str) -> Problem:
    problem = Problem(401, message, code="invalid_api_key")
    problem.auth_header = BEARER
    return problem
