"""The API's WebSocket with vLLM's real front end, a real store and a fake engine."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from controlplane.gateway.consumers import ResponsesConsumer
from tests.controlplane.fakes import DEADLINE_S, Producer, until
from tests.controlplane.web_process import TEXT, Make, Web, speak, tokens_of

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    # Channels closes old database connections at each message, if there are some.
    pytest.mark.django_db(transaction=True),
    # vLLM reads a field of its own requests that it calls deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Socket:
    """One client."""

    def __init__(self, w: Web, key: str = "") -> None:
        headers = [(b"authorization", key.encode())] if key else []
        scope = {"type": "websocket", "path": "/v1/responses", "headers": headers}
        app = ResponsesConsumer.as_asgi(pools=w.pools, keys=w.keys)
        self._inner = ApplicationCommunicator(app, scope)

    async def open(self) -> "Socket":
        await self._inner.send_input({"type": "websocket.connect"})
        message = await self._inner.receive_output(timeout=DEADLINE_S)
        assert message["type"] == "websocket.accept"
        return self

    async def say(self, text: str | None = None, **message: Any) -> None:
        await self._inner.send_input(
            {"type": "websocket.receive", "text": text or json.dumps(message)}
        )

    async def hear(self) -> dict[str, Any]:
        message = await self._inner.receive_output(timeout=DEADLINE_S)
        assert message["type"] == "websocket.send"
        heard: dict[str, Any] = json.loads(message["text"])
        return heard

    async def hear_until(self, kind: str) -> list[dict[str, Any]]:
        heard = [await self.hear()]
        while heard[-1]["type"] != kind:
            heard.append(await self.hear())
        return heard

    async def closed_with(self) -> int:
        message = await self._inner.receive_output(timeout=DEADLINE_S)
        assert message["type"] == "websocket.close"
        return int(message["code"])

    async def leave(self) -> None:
        await self._inner.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._inner.wait(timeout=DEADLINE_S)


async def test_an_answer_comes_in_events_and_is_resumed_on_another_socket(
    web: Make,
    auth: str,
    store: Any,
) -> None:
    async with web() as first, web() as second:
        socket = await Socket(first, auth).open()
        await socket.say(type="response.create", input="hi")
        await until(lambda: bool(first.gate.requests))
        speak(store, first.engine_ids[0], tokens_of(first, TEXT))
        heard = await socket.hear_until("response.completed")
        assert "".join(e.get("delta", "") for e in heard) == TEXT
        response_id = heard[-1]["response"]["id"]
        other = await Socket(second, auth).open()
        for after in (-1, 3, heard[-2]["sequence_number"]):
            await other.say(type="response.resume", response_id=response_id, starting_after=after)
            rest = await other.hear_until("response.completed")
            assert rest == [e for e in heard if e["sequence_number"] > after]
        await socket.leave()
        await other.leave()


@pytest.mark.parametrize("how", ["cancel", "disconnect"])
async def test_a_client_stops_its_answer(
    web: Make,
    auth: str,
    store: Any,
    how: str,
) -> None:
    async with web() as w:
        socket = await Socket(w, auth).open()
        await socket.say(type="response.create", input="hi")
        await until(lambda: bool(w.gate.requests))
        Producer(store).write(w.engine_ids[0], 0, [500])
        await socket.hear_until("response.output_text.delta")
        if how == "cancel":
            await socket.say(type="response.cancel")
            (last,) = await socket.hear_until("response.failed")
            assert last["response"]["status"] == "cancelled"
        else:
            await socket.leave()
        await until(lambda: [kind for kind, _, _ in w.gate.calls] == ["submit", "abort"])


async def test_the_key_may_come_as_the_first_message(
    web: Make,
    auth: str,
) -> None:
    async with web() as w:
        socket = await Socket(w).open()
        await socket.say(type="auth", api_key=auth.removeprefix("Bearer "))
        await socket.say(type="response.create", input="hi")
        assert (await socket.hear())["type"] == "response.created"
        await socket.leave()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"type": "auth", "api_key": "sk-000000000000-x"}, id="wrong key"),
        pytest.param({"type": "response.create", "input": "hi"}, id="no key"),
    ],
)
async def test_without_a_right_key_the_socket_closes(
    web: Make,
    message: dict[str, Any],
) -> None:
    async with web() as w:
        socket = await Socket(w).open()
        await socket.say(**message)
        assert (await socket.hear())["error"]["code"] == "invalid_api_key"
        assert await socket.closed_with() == 1008


async def test_a_bad_message_is_an_error_and_the_socket_stays(
    web: Make,
    auth: str,
) -> None:
    async with web() as w:
        socket = await Socket(w, auth).open()
        for text, param in (
            ("{", None),
            ('{"type": "what"}', "type"),
            ('{"type": "response.create"}', "input"),
            ('{"type": "response.create", "input": "a", "n": 2}', "n"),
            ('{"type": "response.create", "input": "a", "foo": 2}', "foo"),
        ):
            await socket.say(text)
            error = await socket.hear()
            assert error["type"] == "error"
            assert error["error"]["param"] == param
        await socket.say(type="response.resume", response_id="chatcmpl-none")
        assert (await socket.hear())["error"]["code"] == "stream_not_found"
        await socket.leave()


async def test_another_tenant_cannot_resume_an_answer(
    web: Make,
    auth: str,
    make_key_of: Callable[[str], str],
    store: Any,
) -> None:
    async with web() as w:
        socket = await Socket(w, auth).open()
        await socket.say(type="response.create", input="hi")
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], tokens_of(w, "hi"))
        heard = await socket.hear_until("response.completed")
        other = await Socket(w, make_key_of("bob")).open()
        await other.say(type="response.resume", response_id=heard[-1]["response"]["id"])
        assert (await other.hear())["error"]["code"] == "stream_not_found"
        await socket.leave()
        await other.leave()
