"""Clients that do what docs/api.md asks of a good one, whatever happens to the servers.

A stream that breaks, or ends with an error that says that it is `resumable`, is resumed after its
last event, at the next web process. What was refused before it began is sent again after the time
that the refusal names. An answer that is not streamed is asked for again with its Idempotency-Key.
A client whose server is silent for longer than its signs of life are apart goes elsewhere.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import websockets
from websockets.asyncio.client import connect

from benchmarks.chaos_journey import Attempt, Door, End, Journey

SILENCE_S: Final = 25.0
"""A stream's comments are at most 14 s apart: after this the server, or the way to it, is dead."""
JOURNEY_MAX_S: Final = 420.0
"""From the first try to the end, waiting for parts to come back included; after it the request
counts as hung. An installation whose Ray head died is back within a minute or two."""
WAIT_S: Final = 0.5
"""Before another try where no refusal says when."""
WAIT_MAX_S: Final = 5.0
CONNECT_S: Final = 5.0
TRY_AGAIN: Final = frozenset(
    {"server_is_overloaded", "store_unavailable", "database_unavailable", "server_stopping"}
)
"""Codes of a resume or a start that did not work yet, though it may soon."""
REFUSALS: Final = frozenset({429, 503})


class Again(Exception):
    """This try did not work; the next one may."""

    def __init__(self, why: str, wait_s: float = WAIT_S) -> None:
        super().__init__(why)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Site:
    """Where clients send what."""

    urls: tuple[str, ...]
    """Of the web processes."""
    keys: Mapping[str, str]
    """API keys by tenant."""
    model: str
    prompts: tuple[str, ...]


class Client:
    """Travels one journey after another. One a task."""

    def __init__(self, site: Site, http: httpx.AsyncClient, first_url: int = 0) -> None:
        self._site = site
        self._http = http
        self._turn = first_url

    async def travel(self, journey: Journey) -> None:
        """Brings a request to its end, whichever that is."""
        once = {Door.SSE: self._sse, Door.SOCKET: self._socket, Door.WHOLE: self._whole}
        give_up_s = journey.began_s + JOURNEY_MAX_S
        wait_s = WAIT_S
        while journey.end is End.OPEN:
            try:
                async with asyncio.timeout_at(_loop_time(give_up_s)):
                    events = len(journey.ordinals)
                    try:
                        await once[journey.door](journey)
                    except Again as again:
                        journey.breaks.append(str(again))
                        wait_s = max(again.wait_s, wait_s)
                    except (httpx.TransportError, OSError, TimeoutError) as error:
                        journey.breaks.append(type(error).__name__)
                    except websockets.WebSocketException as error:
                        journey.breaks.append(f"{type(error).__name__}: {error}"[:80])
                    if journey.end is not End.OPEN:
                        return
                    wait_s = WAIT_S if len(journey.ordinals) > events else wait_s
                    self._turn += 1
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 1.5, WAIT_MAX_S)
            except TimeoutError:
                journey.close(End.HUNG, time.monotonic())

    def _url(self) -> str:
        return self._site.urls[self._turn % len(self._site.urls)]

    def _headers(self, journey: Journey) -> dict[str, str]:
        """Returns the headers of a new attempt, and notes it."""
        attempt = Attempt(f"chaos-{journey.number}-{uuid.uuid4().hex[:8]}")
        journey.attempts.append(attempt)
        return {
            "Authorization": f"Bearer {self._site.keys[journey.tenant]}",
            "X-Request-Id": attempt.client_request_id,
            "x-ferry-detach-s": "30",
        }

    def _key(self, journey: Journey) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._site.keys[journey.tenant]}"}

    def _body(self, journey: Journey, **more: Any) -> dict[str, Any]:
        return {
            "model": self._site.model,
            "messages": [{"role": "user", "content": self._site.prompts[journey.prompt]}],
            "max_tokens": journey.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        } | more

    async def _sse(self, journey: Journey) -> None:
        path = f"{self._url()}/v1/chat/completions"
        if journey.request_id:
            after = f"{journey.request_id}:{journey.ordinals[-1]}"
            headers = self._key(journey) | {"Last-Event-ID": after}
            asked = self._http.stream("GET", f"{path}/{journey.request_id}/events", headers=headers)
        else:
            body = self._body(journey, stream=True, return_token_ids=True)
            asked = self._http.stream("POST", path, json=body, headers=self._headers(journey))
        async with asked as answer:
            if answer.status_code != 200:
                _refused(journey, answer.status_code, await answer.aread(), answer.headers)
                return
            if journey.request_id:
                journey.resumes += 1
            else:
                journey.attempts[-1].is_begun = True
            async for event_id, data in _events(answer):
                if data == "[DONE]":
                    journey.close(End.COMPLETED, time.monotonic())
                    return
                _take_chunk(journey, event_id, json.loads(data))
                if journey.end is not End.OPEN:
                    return
        raise Again("the stream ended without an end")

    async def _whole(self, journey: Journey) -> None:
        headers = self._headers(journey) | {"Idempotency-Key": f"chaos-{journey.number}"}
        body = self._body(journey, return_token_ids=True)
        url = f"{self._url()}/v1/chat/completions"
        answer = await self._http.post(url, json=body, headers=headers)
        if answer.status_code != 200:
            _refused(journey, answer.status_code, answer.content, answer.headers)
            return
        if answer.headers.get("idempotent-replayed") == "true":
            journey.resumes += 1
        else:
            journey.attempts[-1].is_begun = True
        found = answer.json()
        journey.request_id = found["id"]
        journey.token_ids = found["choices"][0]["token_ids"]
        journey.text = found["choices"][0]["message"]["content"]
        journey.close(End.COMPLETED, time.monotonic())

    async def _socket(self, journey: Journey) -> None:
        address = f"{self._url().replace('http', 'ws', 1)}/v1/responses"
        is_new = not journey.request_id
        headers = self._headers(journey) if is_new else self._key(journey)
        async with connect(
            address, additional_headers=headers, open_timeout=CONNECT_S, close_timeout=1
        ) as socket:
            if is_new:
                body = self._body(journey)
                body["max_output_tokens"] = body.pop("max_tokens")
                await socket.send(json.dumps({"type": "response.create"} | body))
            else:
                where = {"response_id": journey.request_id, "starting_after": journey.ordinals[-1]}
                await socket.send(json.dumps({"type": "response.resume"} | where))
            is_first = not is_new
            while journey.end is End.OPEN:
                async with asyncio.timeout(SILENCE_S):
                    event = json.loads(await socket.recv())
                if is_first and event["type"] != "error":
                    journey.resumes += 1
                    is_first = False
                _take_event(journey, event)


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """Yields the id and data of each event."""
    event_id = data = ""
    async for line in answer.aiter_lines():
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and data:
            yield event_id, data
            event_id = data = ""


def _take_chunk(journey: Journey, event_id: str, chunk: Mapping[str, Any]) -> None:
    if "error" in chunk:
        _failed(journey, chunk["error"])
        return
    request_id, _, ordinal = event_id.partition(":")
    if journey.request_id and request_id != journey.request_id:
        journey.oddities.append(f"event {event_id} of another request came")
    journey.request_id = request_id
    journey.note_event(int(ordinal), time.monotonic())
    for choice in chunk["choices"]:
        journey.token_ids += choice.get("token_ids") or ()
        journey.text += choice["delta"].get("content") or ""


def _take_event(journey: Journey, event: Mapping[str, Any]) -> None:
    kind = event["type"]
    if kind == "error":
        _not_now(journey, event["error"])
        return
    if kind == "response.failed":
        _failed(journey, event["response"].get("error") or {})
        return
    if kind == "response.created":
        journey.request_id = event["response"]["id"]
        journey.attempts[-1].is_begun = True
    journey.note_event(event["sequence_number"], time.monotonic())
    if kind == "response.output_text.delta":
        journey.text += event["delta"]
    elif kind == "request.migrated":
        journey.moves += 1
    elif kind == "response.completed":
        journey.close(End.COMPLETED, time.monotonic())


def _failed(journey: Journey, error: Mapping[str, Any]) -> None:
    """Takes an error in mid-stream. Raises: Again when the stream can be resumed."""
    code = error.get("code")
    # Over a socket, what was refused before it began comes this way too, without that word.
    if error.get("resumable", code in TRY_AGAIN):
        raise Again(f"stream: {code}")
    _close_with(journey, code, f"an error without a code in mid-stream: {error}")


def _refused(journey: Journey, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Takes an HTTP error. Raises: Again when another try may work."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        journey.oddities.append(f"HTTP {status} without an error body: {body[:100]!r}")
        journey.close(End.REFUSED, time.monotonic(), f"http_{status}")
        return
    if status in REFUSALS:
        wait_s = float(headers.get("retry-after-ms", WAIT_S * 1000)) / 1000
        raise Again(f"HTTP {status}: {error.get('code')}", wait_s)
    _not_now(journey, error)


def _not_now(journey: Journey, error: Mapping[str, Any]) -> None:
    code = error.get("code")
    if code in TRY_AGAIN:
        raise Again(f"refused: {code}", float(error.get("retry_after_ms", WAIT_S * 1000)) / 1000)
    _close_with(journey, code, f"refused without a code: {error}")


def _close_with(journey: Journey, code: object, odd: str) -> None:
    if not isinstance(code, str) or code == "internal_error":
        journey.oddities.append(odd)
    end = End.TYPED_ERROR if journey.is_begun else End.REFUSED
    journey.close(end, time.monotonic(), str(code))


def _loop_time(at_monotonic_s: float) -> float:
    return asyncio.get_running_loop().time() + at_monotonic_s - time.monotonic()
