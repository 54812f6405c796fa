"""The format of API keys: `sk-<public id>-<secret>`. Pure.

The secret has 256 random bits, so a fast digest is enough: there is nothing to guess. The public id
finds the row; the digests are compared in constant time.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

PREFIX = "sk"
PUBLIC_ID_BYTES = 6
"""12 hexadecimal digits: a name, not a secret."""
SECRET_BYTES = 32
"""256 bits."""
KEY_MAX_CHARS = 200
"""No key of ours is longer; what is longer is not looked at."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key at the only moment when its secret is known."""

    text: str
    public_id: str
    secret_digest: str
    last4: str


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A key that a client has sent."""

    public_id: str
    secret: str

    def matches(self, secret_digest: str) -> bool:
        """Says whether the secret is the one of the digest."""
        return hmac.compare_digest(digest(self.secret), secret_digest)


def make_key(public_id: str = "") -> NewKey:
    """Returns a new random key; with a public id, a new secret for that key."""
    public_id = public_id or secrets.token_hex(PUBLIC_ID_BYTES)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    text = f"{PREFIX}-{public_id}-{secret}"
    return NewKey(text, public_id, digest(secret), text[-4:])


def parse_key(text: str) -> PresentedKey | None:
    """Returns the parts of a key, None when it is none of ours."""
    if len(text) > KEY_MAX_CHARS or not text.isascii():
        return None
    prefix, _, rest = text.partition("-")
    public_id, _, secret = rest.partition("-")
    if prefix != PREFIX or not public_id or not secret:
        return None
    return PresentedKey(public_id, secret)


def digest(secret: str) -> str:
    """Returns the SHA-256 of a secret, in hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()
