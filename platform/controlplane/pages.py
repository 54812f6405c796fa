"""Django's own ASGI application: pages, admin, /api/v1, static files.

It is made at the first page request, and again when `collectstatic` has run since: the middleware
for static files reads their list once, and at the first start they are collected while this process
already runs.
"""

import os

from django.conf import settings
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.handlers.asgi import ASGIHandler

from controlplane import body_limit
from controlplane.gateway.exchange import Receive, Scope, Send


class PagesApp:
    """One a web process."""

    def __init__(self) -> None:
        self._handler: ASGIHandler | None = None
        self._made_for: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        collected_at = _collected_at()
        if self._handler is None or collected_at != self._made_for:
            # Templates name the files by the same list.
            if self._handler is not None and hasattr(staticfiles_storage, "load_manifest"):
                manifest = staticfiles_storage.load_manifest()
                staticfiles_storage.hashed_files, staticfiles_storage.manifest_hash = manifest
            self._handler, self._made_for = ASGIHandler(), collected_at
        try:
            if body_limit.declared_bytes(scope) > body_limit.BODY_MAX_BYTES:
                raise body_limit.too_large()
            await self._handler(scope, body_limit.limited(receive), send)
        except body_limit.BodyRefused as refused:
            # Django reads the whole body before it begins to answer: nothing has been sent.
            await body_limit.send_refusal(send, refused)


def _collected_at() -> float | None:
    """Returns when the static files were last collected, None before the first time."""
    try:
        return os.stat(settings.STATIC_ROOT / "staticfiles.json").st_mtime
    except FileNotFoundError:
        return None
