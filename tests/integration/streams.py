"""Streams as a client sees them, without a client library that hides the event ids."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

CHAT = "/v1/chat/completions"
WORDS = [{"role": "user", "content": "Tell me a long story."}]
TIMEOUT_S = 180.0
DETACH = {"x-ferry-detach-s": "30"}


@dataclass(frozen=True, slots=True)
class Event:
    event_id: str
    data: str

    @property
    def chunk(self) -> dict[str, Any]:
        chunk: dict[str, Any] = json.loads(self.data)
        return chunk

    @property
    def text(self) -> str:
        if self.data == "[DONE]" or not (choices := self.chunk.get("choices")):
            return ""
        return choices[0]["delta"].get("content") or ""


def chat_body(max_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "SmolLM2-135M-Instruct",
        "messages": WORDS,
        "max_tokens": max_tokens,
        "stream": True,
    } | more


def endless_body(**more: Any) -> dict[str, Any]:
    """Returns a request for minutes of decoding: what ends early did not end by itself."""
    return chat_body(6000, ignore_eos=True) | more


@contextmanager
def open_stream(
    url: str, headers: dict[str, str], body: dict[str, Any] | None, path: str = CHAT
) -> Iterator[Iterator[Event]]:
    """Opens a stream; leaving the block is what a client does that goes away."""
    method = "GET" if body is None else "POST"
    with (
        httpx.Client(base_url=url, timeout=TIMEOUT_S) as client,
        client.stream(method, path, json=body, headers=headers) as answer,
    ):
        if answer.status_code != 200:
            raise AssertionError(f"HTTP {answer.status_code}: {answer.read().decode()}")
        yield events_of(answer)


@contextmanager
def send_only(url: str, headers: dict[str, str], body: dict[str, Any]) -> Iterator[None]:
    """Sends a request and waits for nothing; leaving the block closes the connection."""
    content = json.dumps(body).encode()
    fields = headers | {
        "Host": url.removeprefix("http://"),
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + content)
        yield


def open_socket(url: str, headers: dict[str, str]) -> ClientConnection:
    """Opens the API's WebSocket; use it in a `with`."""
    address = url.replace("http", "ws", 1) + "/v1/responses"
    return connect(address, additional_headers=headers)


def events_of(answer: httpx.Response) -> Iterator[Event]:
    event_id = data = ""
    for line in answer.iter_lines():
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and data:
            yield Event(event_id, data)
            event_id = data = ""


def take(events: Iterator[Event], count: int) -> list[Event]:
    return [event for _, event in zip(range(count), events, strict=False)]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events)
