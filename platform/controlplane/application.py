"""The API, the pages, and the sockets of both, behind one ASGI application."""

from typing import Any

from channels.routing import URLRouter
from django.urls import path

from controlplane.gateway.app import PREFIXES, GatewayApp
from controlplane.gateway.consumers import ResponsesConsumer
from controlplane.gateway.exchange import Receive, Scope, Send
from controlplane.gateway.limits import admission_of
from controlplane.gateway.pools import pools
from controlplane.leaving import leaving
from controlplane.lifespan import run_lifespan
from controlplane.pages import PagesApp
from controlplane.tenants.key_cache import KeyCache
from web.routing import websocket_urlpatterns as page_sockets

keys = KeyCache()
page_app = PagesApp()
api = GatewayApp(pools(), keys)
api_socket: Any = ResponsesConsumer.as_asgi(pools=pools(), keys=keys)
# The pages' sockets check origin and session themselves (web/routing.py).
sockets = URLRouter([path("v1/responses", api_socket), *page_sockets])
_socket_paths = {f"/{pattern.pattern}" for pattern in sockets.routes}


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Hands a connection to the part that answers it."""
    if scope["type"] == "lifespan":
        admission = admission_of(pools())
        admission.start()
        try:
            await run_lifespan(receive, send, pools())
        finally:
            # After everything whose end it is told of.
            await admission.stop()
    elif scope["type"] == "http":
        is_api = scope["path"].startswith(PREFIXES)
        await leaving.answer(api if is_api else page_app, scope, receive, send)
    elif scope["path"] in _socket_paths:
        await sockets(scope, receive, send)
    else:
        # Before the handshake is accepted, the server makes a 403 of it.
        await receive()
        await send({"type": "websocket.close", "code": 1008})
