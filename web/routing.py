"""The WebSocket routes of the pages: same origin and a login, before anything else happens."""

from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import path

from web.consumers import LiveConsumer
from web.messages import PATH

websocket_urlpatterns: list[Any] = [
    path(
        PATH.lstrip("/"), AllowedHostsOriginValidator(AuthMiddlewareStack(LiveConsumer.as_asgi()))
    ),
]
