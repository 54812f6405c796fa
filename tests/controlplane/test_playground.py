"""The playground: a session in place of a key, and streams that can be resumed."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIHandler
from django.test import Client

from controlplane.tenants.models import ApiKey, Tenant
from tests.controlplane.asgi_client import Exchange
from tests.controlplane.fakes import until
from tests.controlplane.test_moving_answers import speak_and_move
from tests.controlplane.web_process import (
    MESSAGES,
    TEXT,
    Make,
    Web,
    speak,
    text_of,
    tokens_of,
)
from web.views import playground

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BODY = {"model": "the-model", "messages": MESSAGES, "stream": True}
CSRF = "c" * 32


@sync_to_async
def cookies_of(*, is_staff: bool) -> str:
    """Makes a person and logs in; returns the Cookie header."""
    client = Client()
    client.force_login(User.objects.create_user("olga", is_staff=is_staff))
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    return f"{settings.SESSION_COOKIE_NAME}={session}; {settings.CSRF_COOKIE_NAME}={CSRF}"


class Playground:
    """An operator's page at one web process."""

    def __init__(self, web: Web, cookies: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(playground, "pools", lambda: web.pools)
        self._app = ASGIHandler()
        self._cookies = cookies

    def ask(self, path: str, body: Any = None, **headers: str) -> Exchange:
        given = {
            "host": "127.0.0.1",
            "content-type": "application/json",
            "cookie": self._cookies,
            "x-csrftoken": CSRF,
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        return Exchange(self._app, "POST", f"/playground/{path}/", body, given)


def ours(events: list[str]) -> list[dict[str, Any]]:
    """Returns the data of the playground's own events."""
    return [json.loads(e.split("data: ")[1]) for e in events if e.startswith("event: ferry")]


def theirs(events: list[str]) -> list[str]:
    return [e for e in events if not e.startswith("event: ferry")]


async def test_an_operator_gets_a_stream_and_is_told_the_instance(
    web: Make, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=True)
    async with web() as w:
        asked = Playground(w, cookies, monkeypatch).ask("stream", BODY)
        await until(lambda: bool(w.gate.requests))
        tokens = tokens_of(w, TEXT)
        speak(store, w.engine_ids[0], tokens)
        events = await asked.events()
        assert asked.status == 200
        assert asked.headers["Content-Type"].startswith("text/event-stream")
        assert text_of(theirs(events)) == TEXT
        first, last = ours(events)
        assert first["instance"] == "i-01"
        assert last["output_tokens"] == len(tokens)
        assert last["ttft_ms"] > 0
        assert w.gate.requests[0].tenant == playground.TENANT_SLUG
    # It needs no key, so none is made.
    assert await Tenant.objects.filter(slug=playground.TENANT_SLUG).acount() == 1
    assert await ApiKey.objects.acount() == 0


async def test_the_page_is_told_where_the_answer_goes_on_and_when(
    web: Make, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=True)
    async with web() as w:
        page = Playground(w, cookies, monkeypatch)
        asked = page.ask("stream", BODY)
        await until(lambda: bool(w.gate.requests))
        speak_and_move(store, w.engine_ids[0], tokens_of(w, TEXT), moves_at=5)
        parts = await asked.events()
        # A move comes in one part with the chunk after it.
        events = [f"{e}\n\n" for p in parts for e in p.removesuffix("\n\n").split("\n\n")]
        assert text_of(theirs(events)) == TEXT
        first, move, last = ours(events)
        assert first["instance"] == "i-01"
        assert move["request_id"] == first["request_id"]
        assert (move["from"], move["to"], move["at_token"]) == ("i-01", "i-02", 5)
        assert move["gap_ms"] >= 0
        assert last["migrations"] == 1
        # A chunk for the role and five with text stand before it.
        at = next(i for i, e in enumerate(events) if '"to": "i-02"' in e)
        assert len(theirs(events[:at])) == 6
        # Who comes back after it is not told again, who comes back before it is.
        for seen, moves in ((3, 1), (9, 0)):
            mark = theirs(events)[seen - 1].split("\n")[0].removeprefix("id: ")
            again = "".join(await page.ask("stream", {}, last_event_id=mark).events())
            assert again.count('"to": "i-02"') == moves


@pytest.mark.parametrize("path", ["stream", "stop"])
async def test_who_is_no_operator_is_refused(
    web: Make, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=False)
    async with web() as w:
        asked = Playground(w, cookies, monkeypatch).ask(path, BODY)
        await asked.started()
        assert asked.status == 403
        assert (await asked.json())["error"]["code"] == "permission_denied"
        assert w.gate.requests == []


async def test_a_form_of_another_site_is_refused(
    web: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=True)
    async with web() as w:
        asked = Playground(w, cookies, monkeypatch).ask("stream", BODY, x_csrftoken="x" * 32)
        await asked.started()
        assert asked.status == 403
        assert w.gate.requests == []


async def test_what_the_gateway_refuses_is_refused_here(
    web: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=True)
    async with web() as w:
        page = Playground(w, cookies, monkeypatch)
        for body, param in (
            ({**BODY, "colour": "blue"}, "colour"),
            ({**BODY, "stream": False}, "stream"),
        ):
            asked = page.ask("stream", body)
            await asked.started()
            assert asked.status == 400
            assert (await asked.json())["error"]["param"] == param


async def test_a_stream_goes_on_after_the_event_that_was_seen_last(
    web: Make, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=True)
    async with web() as w:
        page = Playground(w, cookies, monkeypatch)
        asked = page.ask("stream", BODY)
        await until(lambda: bool(w.gate.requests))
        tokens = tokens_of(w, TEXT)
        speak(store, w.engine_ids[0], tokens)
        events = theirs(await asked.events())
        seen, rest = events[:3], events[3:]
        mark = seen[-1].split("\n")[0].removeprefix("id: ")
        again = page.ask("stream", {}, last_event_id=mark)
        assert theirs(await again.events()) == rest


async def test_stop_ends_the_work_though_the_stream_could_be_resumed(
    web: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=True)
    async with web() as w:
        page = Playground(w, cookies, monkeypatch)
        asked = page.ask("stream", BODY)
        await until(lambda: bool(w.gate.requests))
        await until(lambda: bool(playground._open))
        (request_id,) = playground._open
        stopped = page.ask("stop", None, x_stream_id=request_id)
        await stopped.started()
        assert stopped.status == 204
        await asked.leave()
        await until(lambda: ("abort", "actor-i-01", (w.engine_ids[0],)) in w.gate.calls)
        assert playground._open == {}


async def test_who_leaves_without_a_word_may_come_back(
    web: Make, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=True)
    async with web() as w:
        page = Playground(w, cookies, monkeypatch)
        asked = page.ask("stream", BODY)
        await until(lambda: bool(w.gate.requests))
        await until(lambda: bool(playground._open))
        await asked.leave()
        await asyncio.sleep(0)
        assert "abort" not in {call[0] for call in w.gate.calls}


async def test_a_bad_place_to_resume_from_is_named(
    web: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = await cookies_of(is_staff=True)
    async with web() as w:
        asked = Playground(w, cookies, monkeypatch).ask("stream", {}, last_event_id="nonsense")
        await asked.started()
        assert asked.status == 400
        assert (await asked.json())["error"]["param"] == "Last-Event-ID"
