"""The WebSocket routes of the pages: a page of ours and a session, before anything else happens."""

from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import path

from web.consumers import LiveConsumer
from web.messages import PATH

live = AllowedHostsOriginValidator(AuthMiddlewareStack(LiveConsumer.as_asgi()))

websocket_urlpatterns: list[Any] = [path(PATH.lstrip("/"), live)]
