"""Sessions whose table does not open them: it has digests of their ids, as with keys.

Whoever reads the database, a dump or a replica of it, cannot go on as the people who are logged in.
"""

import hashlib
from typing import Any, Final

from django.contrib.sessions.backends import db
from django.contrib.sessions.base_session import AbstractBaseSession
from django.utils import timezone

DIGEST_CHARS: Final = 40
"""What the table's column holds: 160 bits, far more than an id of 32 letters and digits has to be
guessed by."""


class SessionStore(db.SessionStore):
    """Django's own, but for the digests."""

    def load(self) -> dict[str, Any]:
        row = self._rows().first()
        return self._content(row)

    async def aload(self) -> dict[str, Any]:
        row = await self._rows().afirst()
        return self._content(row)

    def exists(self, session_key: str) -> bool:
        return super().exists(digest(session_key))

    async def aexists(self, session_key: str) -> bool:
        return await super().aexists(digest(session_key))

    def create_model_instance(self, data: Any) -> AbstractBaseSession:
        row = super().create_model_instance(data)
        row.session_key = digest(row.session_key)
        return row

    async def acreate_model_instance(self, data: Any) -> AbstractBaseSession:
        row = await super().acreate_model_instance(data)
        row.session_key = digest(row.session_key)
        return row

    def delete(self, session_key: str | None = None) -> None:
        key = session_key or self.session_key
        if key is not None:
            super().delete(digest(key))

    async def adelete(self, session_key: str | None = None) -> None:
        key = session_key or self.session_key
        if key is not None:
            await super().adelete(digest(key))

    def _rows(self) -> Any:
        key = digest(self.session_key or "")
        return self.model.objects.filter(session_key=key, expire_date__gt=timezone.now())

    def _content(self, row: Any) -> dict[str, Any]:
        if row is None:
            self._session_key = None
            return {}
        content: dict[str, Any] = self.decode(row.session_data)
        return content


def digest(session_key: str) -> str:
    """Returns what the table has of a session's id. Fast, as the id is random."""
    return hashlib.sha256(session_key.encode()).hexdigest()[:DIGEST_CHARS]
