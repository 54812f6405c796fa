"""Lets an operator's browser use the API from our own pages: by its session instead of a key.

The playground needs no key in a page then. Only for operators, only from a page of this site (the
browser says so, and its cookie is not sent along from elsewhere), as the first tenant.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.db import DatabaseError, close_old_connections
from django.utils.crypto import constant_time_compare

from controlplane.fleet.permissions import is_operator
from controlplane.gateway.exchange import ApiRequest
from controlplane.tenants.first_login import FIRST_TENANT
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import KeyPolicy
from engine_pool.types import PriorityClass

QUERY_TIMEOUT_S: Final = 2.0
_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessions")


async def policy_of_session(request: ApiRequest) -> KeyPolicy | None:
    """Returns what an operator's session allows, None when the request has no such session."""
    session_key = _session_key(request)
    if session_key is None or not _is_same_origin(request):
        return None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(QUERY_TIMEOUT_S):
            return await loop.run_in_executor(_thread, _query, session_key)
    except (DatabaseError, TimeoutError):
        return None


def _session_key(request: ApiRequest) -> str | None:
    try:
        cookies = SimpleCookie(request.headers.get("cookie", ""))
    except CookieError:
        return None
    morsel = cookies.get(settings.SESSION_COOKIE_NAME)
    return morsel.value if morsel else None


def _is_same_origin(request: ApiRequest) -> bool:
    """Says whether a page of this site asks; a browser always tells at least one of the two."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", "")).netloc
    return bool(origin) and origin == request.headers.get("host")


def _query(session_key: str) -> KeyPolicy | None:
    close_old_connections()
    session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    if session.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS:
        return None
    user = get_user_model().objects.filter(pk=session.get(SESSION_KEY)).first()
    # As django.contrib.auth.get_user: a changed password ends the sessions.
    if user is None or not constant_time_compare(
        session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash()
    ):
        return None
    tenant = Tenant.objects.filter(slug=FIRST_TENANT).first() or Tenant.objects.first()
    if not is_operator(user) or tenant is None:
        return None
    return KeyPolicy(
        key_id=0,
        secret_digest="",
        tenant_id=tenant.pk,
        tenant=tenant.slug,
        priority_class=PriorityClass(tenant.priority_class),
        expires_at=None,
        is_active=True,
    )
