"""The API, the pages, and the sockets of both, behind one ASGI application."""

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.handlers.asgi import ASGIHandler

from controlplane.gateway.app import PREFIXES, GatewayApp
from controlplane.gateway.exchange import Receive, Scope, Send
from controlplane.gateway.routing import websocket_urlpatterns as gateway_sockets
from controlplane.gateway.runtime import runtime
from controlplane.lifespan import run_lifespan
from controlplane.tenants.key_cache import KeyCache
from web.routing import websocket_urlpatterns as page_sockets

keys = KeyCache()
pages = ASGIHandler()
api = GatewayApp(runtime(), keys)
api_sockets = URLRouter(gateway_sockets)
# A page's socket has the session's rights, so it must come from a page of ours.
page_router = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(page_sockets)))


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Hands a connection to the part that answers it."""
    kind = scope["type"]
    if kind == "lifespan":
        await run_lifespan(receive, send, runtime())
    elif kind == "http":
        is_api = scope["path"].startswith(PREFIXES)
        await (api if is_api else pages)(scope, receive, send)
    else:
        is_api = scope["path"].startswith("/v1/")
        await (api_sockets if is_api else page_router)(scope, receive, send)
