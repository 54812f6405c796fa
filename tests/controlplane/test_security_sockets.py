"""Sockets that other sites' pages open in a person's browser: one checks where the page is from,
the other knows no cookies."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from controlplane.gateway.consumers import ResponsesConsumer
from web.messages import CLOSE_NOT_ALLOWED, PATH
from web.routing import live

EVIL = b"https://evil.example"
OURS = b"http://localhost"


async def opened(
    app: Any, path: str, origin: bytes | None, cookie: str = ""
) -> tuple[ApplicationCommunicator, dict[str, Any]]:
    """Opens a socket as a page from there would; returns the answer to that, too."""
    headers = [] if origin is None else [(b"origin", origin)]
    headers += [(b"cookie", cookie.encode())] if cookie else []
    scope = {"type": "websocket", "path": path, "headers": headers, "query_string": b""}
    socket = ApplicationCommunicator(app, scope)
    await socket.send_input({"type": "websocket.connect"})
    return socket, await socket.receive_output(timeout=60)


@pytest.fixture
def cookie(transactional_db: None) -> str:
    client = Client()
    client.force_login(User.objects.create_user("olga", password="x", is_staff=True))
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"


@pytest.mark.parametrize("origin", [EVIL, None, b"null", b"http://localhost.evil.example"])
async def test_the_pages_socket_opens_for_our_own_pages_only(
    origin: bytes | None, cookie: str, settings: Any
) -> None:
    settings.ALLOWED_HOSTS = ["localhost"]
    _, answer = await opened(live, PATH, origin, cookie)
    assert answer["type"] == "websocket.close", "refused before it is open, session or not"


async def test_the_pages_socket_ends_at_once_without_a_session(
    transactional_db: None, settings: Any
) -> None:
    settings.ALLOWED_HOSTS = ["localhost"]
    socket, answer = await opened(live, PATH, OURS)
    assert answer["type"] == "websocket.accept"
    output = await socket.receive_output(timeout=60)
    assert (output["type"], output["code"]) == ("websocket.close", CLOSE_NOT_ALLOWED)


async def test_the_apis_socket_takes_a_key_and_no_cookie_wherever_the_page_is_from(
    cookie: str,
) -> None:
    api = ResponsesConsumer.as_asgi(pools=SimpleNamespace(is_stopping=False), keys=None)
    socket, answer = await opened(api, "/v1/responses", EVIL, cookie)
    assert answer["type"] == "websocket.accept"
    wish = json.dumps({"type": "response.create", "model": "m", "input": "hello"})
    await socket.send_input({"type": "websocket.receive", "text": wish})
    error = json.loads((await socket.receive_output(timeout=60))["text"])
    assert error["error"]["code"] == "invalid_api_key"
    output = await socket.receive_output(timeout=60)
    assert (output["type"], output["code"]) == ("websocket.close", 1008)
