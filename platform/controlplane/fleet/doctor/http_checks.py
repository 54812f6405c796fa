"""The doctor's checks from a client's side: readiness, chat, SSE, resume, WebSocket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from controlplane.fleet.doctor.report import Check, Problem

HTTP_TIMEOUT_S: Final = 30.0
"""Longest silence of the server; streams get a ping at least every 15 s."""
WORDS: Final = [{"role": "user", "content": "Count from one to twenty in words."}]
MAX_TOKENS: Final = 24
"""Enough for a stream that can be cut, and a second or two on a CPU engine."""
CUT_AFTER_EVENTS: Final = 4
STAY: Final = {"x-ferry-detach-s": "20"}
"""Seconds that a request goes on without its client, who will be back at once."""
_SEE_WEB = "look at var/log/web.log"


class HttpChecks:
    """Checks with a key of their own against `url`. Call `close` at the end."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self._http = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=HTTP_TIMEOUT_S
        )
        self._model = ""
        self._models: list[str] = []

    async def close(self) -> None:
        await self._http.aclose()

    def checks(self) -> list[Check]:
        return [
            Check("web", self.web),
            Check("models", self.models, needs=("web", "key")),
            Check("chat", self.chat, needs=("models",)),
            Check("stream", self.stream, needs=("models",)),
            Check("resume", self.resume, needs=("stream",)),
            Check("websocket", self.websocket, needs=("models",)),
        ]

    async def web(self) -> str:
        try:
            answer = await self._http.get("/readyz")
        except httpx.HTTPError as error:
            raise Problem(
                f"no web server answers at {self._url} ({type(error).__name__})",
                "is the installation running (make up)? " + _SEE_WEB,
            ) from None
        if answer.status_code != 200:
            raise Problem(f"it is not ready: {_reason(answer)}", _SEE_WEB)
        return f"{self._url} is ready"

    async def models(self) -> str:
        answer = await self._http.get("/v1/models")
        if answer.status_code != 200:
            raise Problem(f"GET /v1/models: HTTP {answer.status_code}", _SEE_WEB)
        self._models = [card["id"] for card in answer.json()["data"]]
        if not self._models:
            raise Problem("no model is served", "switch a pool on (/pools/)")
        self._model = self._models[0]
        return f"serves {', '.join(self._models)}"

    async def chat(self) -> str:
        """Asks every model, so every pool."""
        tokens = 0
        for model in self._models:
            body = self._body() | {"model": model}
            answer = await self._http.post("/v1/chat/completions", json=body)
            if answer.status_code != 200:
                why = f"{model}: HTTP {answer.status_code}: {_reason(answer)}"
                raise Problem(why, _SEE_WEB)
            said = answer.json()
            tokens += said["usage"]["completion_tokens"]
            if not said["choices"][0]["message"]["content"]:
                raise Problem(f"{model}: the answer is empty", _SEE_WEB)
        return f"{tokens} tokens from {len(self._models)} model{'s' * (len(self._models) > 1)}"

    async def stream(self) -> str:
        events = await self._events(self._body(stream=True), {})
        _check_whole(events)
        return f"{len(events) - 1} events, closed properly"

    async def resume(self) -> str:
        """Cuts a stream after a few events and goes on by the last one's id."""
        body = self._body(stream=True)
        first: list[tuple[str, str]] = []
        async with self._open(body, STAY) as lines:
            async for event in _events_of(lines):
                first.append(event)
                if len(first) == CUT_AFTER_EVENTS:
                    break
        last_id = first[-1][0]
        if len(first) < CUT_AFTER_EVENTS or not last_id:
            raise Problem("the stream's events have no ids", _SEE_WEB)
        rest = await self._events(body, {"Last-Event-ID": last_id})
        _check_whole(rest)
        ids = [event_id for event_id, _ in first + rest if event_id]
        if len(set(ids)) != len(ids):
            raise Problem("a resumed stream repeats events", _SEE_WEB)
        return f"cut after {len(first)} events, {len(rest) - 1} followed, none twice"

    async def websocket(self) -> str:
        url = self._url.replace("http", "ws", 1) + "/v1/responses"
        try:
            async with connect(url, open_timeout=HTTP_TIMEOUT_S, max_size=None) as socket:
                await socket.send(json.dumps({"type": "auth", "api_key": self._key}))
                message = {
                    **{"type": "response.create", "model": self._model},
                    **{"messages": WORDS, "max_output_tokens": MAX_TOKENS},
                }
                await socket.send(json.dumps(message))
                return await _whole_response(socket)
        except (OSError, WebSocketException) as error:
            raise Problem(f"the socket failed ({type(error).__name__})", _SEE_WEB) from None

    def _body(self, *, stream: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": WORDS,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
        }
        return body | {"stream": True} if stream else body

    async def _events(self, body: dict[str, Any], headers: dict[str, str]) -> list[tuple[str, str]]:
        async with self._open(body, headers) as lines:
            return [event async for event in _events_of(lines)]

    @asynccontextmanager
    async def _open(
        self, body: dict[str, Any], headers: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[str]]:
        path = "/v1/chat/completions"
        async with self._http.stream("POST", path, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise Problem(f"HTTP {answer.status_code}: {_reason(answer)}", _SEE_WEB)
            yield answer.aiter_lines()


async def _events_of(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, str]]:
    """Yields each event's id ("" for none) and data; comments (pings) are no events."""
    event_id = data = ""
    async for line in lines:
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and data:
            yield event_id, data
            event_id = data = ""


def _check_whole(events: list[tuple[str, str]]) -> None:
    """Raises: Problem unless the stream has a finish reason and its end, and no error."""
    if not events or events[-1][1] != "[DONE]":
        raise Problem(f"the stream broke off after {len(events)} events", _SEE_WEB)
    chunks = [json.loads(data) for _, data in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    if not any(choice.get("finish_reason") for choice in choices):
        raise Problem("the stream ended without a finish reason", _SEE_WEB)


async def _whole_response(socket: Any) -> str:
    """Reads a socket up to the end of its answer. Raises: Problem if that is no success."""
    deltas = 0
    last_number = -1
    while True:
        async with asyncio.timeout(HTTP_TIMEOUT_S):
            event = json.loads(await socket.recv())
        if event["type"] in ("error", "response.failed"):
            error = event.get("error") or event["response"].get("error") or {}
            raise Problem(f"the answer failed: {error.get('message', 'no reason given')}", _SEE_WEB)
        if event["sequence_number"] <= last_number:
            raise Problem("the socket's events are out of order", _SEE_WEB)
        last_number = event["sequence_number"]
        deltas += event["type"] == "response.output_text.delta"
        if event["type"] == "response.completed":
            return f"{deltas} deltas, completed"


def _reason(answer: httpx.Response) -> str:
    try:
        body = answer.json()
        return str(body["error"]["message"] if "error" in body else body["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"
