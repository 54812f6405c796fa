"""What every answer carries, what is too large, and what an error does not tell."""

import asyncio
import json
from typing import Any

import pytest
from django.conf import settings
from django.test import Client, override_settings
from django.urls import path

from controlplane import body_limit
from controlplane.log_filter import hide
from controlplane.pages import PagesApp
from ops.parts import web_part
from tests.web.conftest import plain_static_files

__all__ = ["plain_static_files"]

PATHS = ["/login/", "/admin/login/", "/no/such/page", "/api/v1/tenants/"]


def broken(request: object) -> None:
    raise ValueError("sk-0123456789ab-" + "s" * 43)


urlpatterns = [path("broken/", broken)]


@pytest.mark.django_db
@pytest.mark.parametrize("where", PATHS)
def test_every_answer_has_the_headers(where: str) -> None:
    answer = Client().get(where)
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["Referrer-Policy"] == "same-origin"
    assert answer["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answer["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "camera=()" in answer["Permissions-Policy"]
    assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]
    assert "Strict-Transport-Security" not in answer


@pytest.mark.django_db
@override_settings(SECURE_HSTS_SECONDS=3600)
def test_with_tls_browsers_are_told_never_to_go_without() -> None:
    assert Client().get("/login/", secure=True)["Strict-Transport-Security"] == "max-age=3600"


def test_tls_is_one_switch() -> None:
    assert settings.SESSION_COOKIE_SECURE is settings.CSRF_COOKIE_SECURE is settings.HTTPS
    assert bool(settings.SECURE_HSTS_SECONDS) is settings.HTTPS


@override_settings(ROOT_URLCONF=__name__)
def test_an_error_page_tells_nothing_of_the_error() -> None:
    client = Client(raise_request_exception=False)
    answer = client.get("/broken/")
    assert answer.status_code == 500
    assert b"ValueError" not in answer.content
    assert b"sk-" not in answer.content
    assert b"Traceback" not in answer.content


def scope(length: int | None) -> dict[str, Any]:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return {
        "type": "http", "method": "POST", "path": "/login/", "raw_path": b"/login/",
        "query_string": b"", "headers": headers, "root_path": "", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip


async def ask(length: int | None, parts: list[bytes], gap_s: float = 0.0) -> dict[str, Any]:
    """Sends a body to a page; returns the first message of the answer and the whole body."""
    sent: list[dict[str, Any]] = []
    left = list(parts)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(gap_s)
        if not left:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    await PagesApp()(scope(length), receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return {**sent[0], "body": body}


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("length", "parts"),
    [
        pytest.param(10**12, [b"x"], id="it says so"),
        pytest.param(None, [b"x" * MIB] * 3, id="it does not say"),
        pytest.param(5, [b"x" * MIB] * 3, id="it lies"),
    ],
)
async def test_a_body_that_is_too_large_is_not_read_to_its_end(
    length: int | None, parts: list[bytes]
) -> None:
    answer = await ask(length, parts)
    assert answer["status"] == 413
    assert json.loads(answer["body"])["error"]["code"] == "request_too_large"


async def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "BODY_TIMEOUT_S", 0.05)
    answer = await ask(10, [b"x"], gap_s=30.0)
    assert answer["status"] == 408


@pytest.mark.parametrize(
    ("trusted", "options"),
    [
        pytest.param("", ("--no-proxy-headers",), id="nobody"),
        pytest.param("10.0.0.1, 10.1.0.0/16", ("--forwarded-allow-ips", "10.0.0.1,10.1.0.0/16")),
    ],
)
def test_only_named_proxies_say_who_the_client_is(
    monkeypatch: pytest.MonkeyPatch, trusted: str, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("FERRY_TRUSTED_PROXIES", trusted)
    assert web_part("127.0.0.1", 1).command[-len(options) :] == options


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("key sk-0123456789ab-" + "A" * 43, "key sk-0123456789ab-...", id="a key"),
        pytest.param(
            "Authorization: Bearer eyJhbGciOi.x-y", "Authorization: Bearer ...", id="a token"
        ),
        pytest.param("Cookie: sessionid=abc123; theme=dark", "Cookie: ...", id="cookies"),
        pytest.param("{'sessionid': 'abc123def'}", "{'sessionid': '...'}", id="a session"),
        pytest.param("csrftoken=abc123 next", "csrftoken=... next", id="a token of a form"),
        pytest.param(
            "postgres://ferry:pass-word@db:5432/x", "postgres://ferry:...@db:5432/x", id="a URL"
        ),
        pytest.param("password=hunter2&x=1", "password=...&x=1", id="a form"),
        pytest.param("the password was wrong", "the password was wrong", id="a sentence"),
    ],
)
def test_logs_are_freed_of_secrets(text: str, shown: str) -> None:
    assert hide(text) == shown
