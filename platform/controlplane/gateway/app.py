"""The API as an ASGI application, beside Django's own (controlplane/asgi.py joins them)."""

import asyncio
import functools
import logging
import time
from typing import Final

from controlplane.gateway import exchange, limits
from controlplane.gateway.errors import ApiError
from controlplane.gateway.exchange import ApiRequest, ApiResponse, ClientGone, Receive, Scope, Send
from controlplane.gateway.key_access import taken_away
from controlplane.gateway.pools import Pools
from controlplane.gateway.views import Views
from controlplane.tenants.key_cache import KeyCache

logger = logging.getLogger(__name__)
access_log = logging.getLogger("ferry.access")

PREFIXES: Final = ("/v1/", "/livez", "/readyz", "/healthz", "/metrics", "/tokenize", "/detokenize")
"""Paths that are answered here."""


class GatewayApp:
    """One a web process."""

    def __init__(self, pools: Pools, keys: KeyCache) -> None:
        self._views = Views(pools, keys)
        self._admission = limits.admission_of(pools)
        self._admission.taken_away = functools.partial(taken_away, keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = exchange.read_head(scope)
        try:
            await exchange.read_body(request, receive)
        except ApiError as error:
            await self._send(send, request, exchange.from_error(error))
            return
        except ClientGone:
            return
        work = asyncio.create_task(self._serve(request, send))
        gone = asyncio.create_task(exchange.until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait({work, gone})
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error

    async def _serve(self, request: ApiRequest, send: Send) -> None:
        response = await self._answer(request)
        try:
            if request.policy is not None and not limits.has_standing(response.headers):
                response.headers |= await limits.standing_headers(self._admission, request.policy)
            await self._send(send, request, response)
        finally:
            if response.stream is not None:
                await response.stream.aclose()

    async def _answer(self, request: ApiRequest) -> ApiResponse:
        try:
            view = self._views.find(request.method, request.path)
            return await view(request)
        except ApiError as error:
            limits.count_rejection(error)
            return exchange.from_error(error)
        except Exception:
            logger.exception("request %s failed", request.request_id)
            return exchange.from_error(ApiError(500, "Something here is broken.", "internal_error"))

    @staticmethod
    async def _send(send: Send, request: ApiRequest, response: ApiResponse) -> None:
        try:
            await exchange.send_response(send, request, response)
        finally:
            # Whoever asks every second for signs of life would fill the log.
            level = logging.DEBUG if request.method == "GET" else logging.INFO
            access_log.log(
                level,
                "%s %s %d %.0f ms id=%s%s",
                request.method,
                request.path,
                response.status,
                (time.monotonic() - request.arrived_s) * 1000,
                request.request_id,
                f" trace={request.trace_id}" if request.trace_id else "",
            )
