"""The WebSocket routes of the API."""

from typing import Any

websocket_urlpatterns: list[Any] = []
