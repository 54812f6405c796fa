"""The WebSocket routes of the pages; `controlplane/application.py` asks for origin and session."""

from typing import Any

from django.urls import path

from web.consumers import LiveConsumer
from web.messages import PATH

websocket_urlpatterns: list[Any] = [path(PATH.lstrip("/"), LiveConsumer.as_asgi())]
