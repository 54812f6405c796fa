"""The WebSocket routes of the pages."""

from typing import Any

websocket_urlpatterns: list[Any] = []
