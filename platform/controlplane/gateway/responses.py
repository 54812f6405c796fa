"""The Responses-style protocol of the WebSocket: vLLM's chat chunks as its events. Pure.

| from the client | what it does |
|---|---|
| {"type":"auth","api_key":"sk-..."} | first message, when the handshake had no Authorization |
| {"type":"response.create", ...chat fields, "input" or "messages"} | asks for an answer |
| {"type":"response.resume","response_id":...,"starting_after":N} | goes on after event N |
| {"type":"response.cancel"} | stops the answer under way |

| from the server | sequence_number |
|---|---|
| response.created | 0 |
| response.in_progress | 1 |
| response.output_text.delta | the ordinal of the chunk (sse.py): the same at each replay |
| request.migrated | counted among the chunks; between the tokens of two instances |
| request.replayed | the same; the one before was lost |
| response.completed, response.failed | the last |
| error | none: something about a message, not about an answer |

One answer at a time on a socket, one choice, text only.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from controlplane.gateway.call import Migration
from controlplane.gateway.errors import ApiError
from controlplane.gateway.sse import DONE

NOT_HERE: Final = ("n", "tools", "tool_choice", "logprobs", "top_logprobs", "functions", "stream")
"""Fields of a chat that only the HTTP endpoint serves."""
_RENAMED: Final = {"max_output_tokens": "max_completion_tokens"}
"""OpenAI's Responses call it so."""


def to_chat_body(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the chat request that a response.create asks for. Raises: ApiError 400."""
    body = {_RENAMED.get(k, k): v for k, v in message.items() if k != "type"}
    for name in NOT_HERE:
        if name in body:
            raise ApiError(400, f"`{name}` is served over HTTP only.", param=name)
    if ("input" in body) == ("messages" in body):
        raise ApiError(400, "Send either `input` or `messages`.", param="input")
    if "input" in body:
        given = body.pop("input")
        body["messages"] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if instructions := body.pop("instructions", None):
        body["messages"] = [{"role": "system", "content": instructions}, *body["messages"]]
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


class ResponseEvents:
    """Of one answer as one connection gets it; takes sse.Numbering's place."""

    def __init__(
        self, response_id: str, created_unix_s: int, model: str, after: int | None = None
    ) -> None:
        self._head = {
            "id": response_id,
            "object": "response",
            "created_at": created_unix_s,
            "model": model,
        }
        self._after = -1 if after is None else after
        self._number = 0
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self.has_failed = False

    def created(self) -> str | None:
        """Returns the first event, None when the client has it already."""
        return self._numbered("response.created", response=self._response("in_progress"))

    def event(self, chunk: str) -> str | None:
        """Returns the event for a chunk of vLLM's, None when there is none for this client."""
        if chunk == DONE:
            return None
        body = json.loads(chunk.removeprefix("data: "))
        self._number += 1
        if "error" in body:
            if body["error"].get("resumable"):
                # It has not failed: the socket closes with 1001, and the answer goes on elsewhere.
                self.has_failed = True
                return None
            return self.failed(body["error"])
        if not body["choices"]:
            return self._completed(body.get("usage"))
        choice = body["choices"][0]
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        delta = choice["delta"].get("content") or ""
        if choice["delta"].get("role"):
            return self._numbered("response.in_progress", response=self._response("in_progress"))
        if not delta:
            return None
        self._text.append(delta)
        return self._numbered(
            "response.output_text.delta",
            response_id=self._head["id"],
            output_index=0,
            content_index=0,
            delta=delta,
        )

    def migrated(self, migration: Migration) -> str | None:
        """Returns the event for a move, None when the client has it already."""
        # The log alone says where it stands among the chunks, so it has one number at each replay.
        self._number += 1
        return self._numbered(migration.kind, request_id=self._head["id"], **migration.facts)

    def failed(self, error: Mapping[str, Any]) -> str | None:
        """Returns the event that ends an answer that failed."""
        self.has_failed = True
        # A resumed answer may fail before it comes to what its client has: that is told, too.
        self._number = max(self._number, self._after + 1)
        return self._numbered("response.failed", response=self._response("failed", error=error))

    def cancelled(self) -> str | None:
        """Returns the event that ends an answer that its client has stopped."""
        self._number += 1
        return self._numbered("response.failed", response=self._response("cancelled"))

    def _completed(self, usage: Mapping[str, Any] | None) -> str | None:
        # What stopped early is incomplete in OpenAI's words; the event's type stays the same.
        status = "incomplete" if self._finish_reason == "length" else "completed"
        counted = {
            "input_tokens": (usage or {}).get("prompt_tokens", 0),
            "output_tokens": (usage or {}).get("completion_tokens", 0),
            "total_tokens": (usage or {}).get("total_tokens", 0),
        }
        return self._numbered("response.completed", response=self._response(status, usage=counted))

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        content = [{"type": "output_text", "text": "".join(self._text)}]
        output = [{"type": "message", "role": "assistant", "content": content}]
        return {
            **self._head,
            "status": status,
            "finish_reason": self._finish_reason,
            "output": output if self._text else [],
            **more,
        }

    def _numbered(self, kind: str, **fields: Any) -> str | None:
        if self._number <= self._after:
            return None
        return json.dumps(
            {"type": kind, "sequence_number": self._number, **fields}, ensure_ascii=False
        )
