"""From a body to an answer: the life of one API request in this process (ARCHITECTURE.md).

1. read the body with vLLM's own request model, refuse what is not served
2. reserve what it needs of the limits, or refuse (limits.py)
3. render and tokenize, send to an engine (front end, dispatcher)
4. answer: events as the tokens come, or one JSON
5. at the end, whatever it is: stop the engine, settle, count, write the record (ending.py)
"""

import asyncio
import json
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from controlplane.admission.estimate import NOTHING, Estimate, estimate_of
from controlplane.admission.leases import Lease
from controlplane.admission.service import Admission
from controlplane.gateway import limits
from controlplane.gateway.call import Call, Migration, current_call
from controlplane.gateway.ending import Ending
from controlplane.gateway.errors import ApiError
from controlplane.gateway.fields import check_fields, class_of
from controlplane.gateway.pools import Pools
from controlplane.gateway.resume import record_fields
from controlplane.gateway.runtime import Runtime
from controlplane.tenants.selectors import NO_TARGET, KeyPolicy, Target

if TYPE_CHECKING:
    from controlplane.gateway.frontend.serving import FrontEnd

ID_PREFIXES: Final = {"chat": "chatcmpl-", "completions": "cmpl-", "responses": "chatcmpl-"}
"""What vLLM, like OpenAI, puts before the ids of each endpoint."""
TTFT_HEADER: Final = "x-slo-ttft-ms"
TPOT_HEADER: Final = "x-slo-tpot-ms"
"""What a request wants to be promised, in place of its tenant's SLO."""


@dataclass(slots=True)
class Completion:
    """A request that has been read."""

    runtime: Runtime
    """Of the pool that serves its model."""
    call: Call
    request: Any
    """vLLM's ChatCompletionRequest or CompletionRequest."""
    created_unix_s: int
    policy: KeyPolicy
    """Of whoever asks."""
    admission: Admission
    detach_s: float = 0.0
    """How long the engine goes on when the client leaves; 0: not at all."""
    estimate: Estimate = NOTHING
    """What is reserved for it; nothing for one that is resumed."""
    lease: Lease | None = None
    """What it holds of the limits, once it is admitted."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer: how full the limits are."""

    @property
    def choices(self) -> int:
        prompts = getattr(self.request, "prompt", None)
        many = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
        return (self.request.n or 1) * (len(prompts) if many else 1)


def read(
    pools: Pools, endpoint: str, raw: bytes, policy: KeyPolicy, headers: Mapping[str, str]
) -> Completion:
    """Returns a new request. `headers`: names in lower case.

    Raises: ApiError 400; 404 for a model that is not there for this key; 503 when it is not served
    now.
    """
    body = parse_json(raw)
    runtime = pools.for_model(body.get("model"), policy)
    front = runtime.ready_front()
    check_fields(body, front.fields(endpoint), is_simulated=runtime.is_simulated)
    call = Call(
        request_id=ID_PREFIXES[endpoint] + uuid.uuid4().hex,
        endpoint=endpoint,
        tenant_id=policy.tenant_id,
        tenant=policy.tenant,
        priority_class=class_of(body, policy.default_class, policy.highest_class),
        weight=policy.weight,
        key_id=policy.key_id,
        client_request_id=headers.get("x-request-id", ""),
        pool=runtime.client.config.pool,
        model=runtime.model_name,
    )
    call.target = target_of(headers, policy.targets.get(call.priority_class, NO_TARGET))
    created_unix_s = int(call.arrived_unix_s)
    call.fields = record_fields(call, raw, created_unix_s)
    request = to_request(front, call, body)
    admission = limits.admission_of(pools)
    completion = Completion(runtime, call, request, created_unix_s, policy, admission)
    completion.estimate = estimate_of(
        body, choices=request.n or 1, context_tokens=runtime.client.view.max_model_len
    )
    return completion


def target_of(headers: Mapping[str, str], promised: Target) -> Target:
    """Returns what the request is promised: by its own headers, else by its tenant's SLO.

    Raises: ApiError 400 naming the header.
    """
    found = {}
    for header, name in ((TTFT_HEADER, "ttft_ms"), (TPOT_HEADER, "tpot_ms")):
        if (text := headers.get(header)) is None:
            continue
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise ApiError(400, f"{header} must be milliseconds, above 0.", param=header)
        found[name] = value
    return replace(promised, **found)


def to_request(front: "FrontEnd", call: Call, body: Mapping[str, Any]) -> Any:
    """Returns vLLM's request with our id and without what only we read. Raises: ApiError 400."""
    ours = {k: v for k, v in body.items() if k not in ("service_tier", "priority", "request_id")}
    request_id = call.request_id.removeprefix(ID_PREFIXES[call.endpoint])
    call.needs_parser = front.reasons or bool(body.get("tools"))
    # It may have been asked for by an alias.
    model = front.models.base_model_paths[0].name
    return front.parse(call.endpoint, {**ours, "model": model, "request_id": request_id})


async def answer(completion: Completion) -> bytes:
    """Returns the whole answer as JSON. Raises: ApiError."""
    front = completion.runtime.ready_front()
    await limits.enter(completion)
    ending = Ending(front, completion)
    current_call.set(completion.call)
    try:
        text = await front.complete(completion.request, completion.created_unix_s)
        ending.outcome = _outcome(completion)
    except ApiError as error:
        ending.fail(error)
        raise
    finally:
        ending.close()
    return text


class ChunkEvents(Protocol):
    """Makes what a client gets of vLLM's chunks: sse.Numbering, responses.ResponseEvents."""

    has_failed: bool
    """A chunk said that the answer failed."""

    def event(self, chunk: str) -> str | None:
        """Returns the event for a chunk, None when this client gets none."""

    def migrated(self, migration: Migration) -> str | None:
        """Takes note of a move that comes before the next chunk. Returns an event of its own for
        it, if there is one."""


class EventStream:
    """A streamed answer. `start` it, iterate, and close it whatever happens."""

    def __init__(
        self,
        completion: Completion,
        events: ChunkEvents,
    ) -> None:
        self._front = completion.runtime.ready_front()
        self._completion = completion
        self._ending: Ending | None = None
        self._events = events
        self._chunks: AsyncGenerator[str, None] | None = None
        self._first: asyncio.Future[str | None] | None = None
        self._ready: deque[str] = deque()

    async def start(self) -> None:
        """Returns once an engine has taken the request. Raises: ApiError; close it then too."""
        call = self._completion.call
        await limits.enter(self._completion)
        self._ending = ending = Ending(self._front, self._completion)
        current_call.set(call)
        try:
            self._chunks = await self._front.chunks(self._completion.request)
            self._first = asyncio.ensure_future(_next(self._chunks))
            accepted = asyncio.ensure_future(call.accepted.wait())
            try:
                await asyncio.wait({accepted, self._first}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                accepted.cancel()
            if not call.accepted.is_set() and call.failure is not None:
                raise self._front.error_of(call.failure)
        except ApiError as error:
            ending.fail(error)
            raise

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> str:
        assert self._chunks is not None, "start comes first"
        while not self._ready:
            first, self._first = self._first, None
            chunk = await (first or _next(self._chunks))
            if chunk is None:
                self._note_end()
                raise StopAsyncIteration
            moves = self._completion.call.take_untold()
            texts = [*map(self._events.migrated, moves), self._events.event(chunk)]
            self._ready.extend(text for text in texts if text is not None)
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Ends the request, unless it has ended or goes on without its client."""
        try:
            if self._first is not None and not self._first.done():
                self._first.cancel()
                await asyncio.wait({self._first})
            if self._chunks is not None:
                await self._chunks.aclose()
        finally:
            if self._ending is not None:
                self._ending.close()

    def _note_end(self) -> None:
        assert self._ending is not None, "start comes first"
        failure = self._completion.call.failure
        if failure is not None:
            self._ending.fail(self._front.error_of(failure))
        else:
            is_failed = self._events.has_failed
            self._ending.outcome = "failed" if is_failed else _outcome(self._completion)


def _outcome(completion: Completion) -> str:
    """Returns how an answer has ended that came to its end."""
    if not completion.call.is_cancelled:
        return "completed"
    # Nothing is left that its client could come back for.
    completion.detach_s = 0.0
    return "cancelled"


async def _next(chunks: AsyncGenerator[str, None]) -> str | None:
    return await anext(chunks, None)


def parse_json(raw: bytes) -> dict[str, Any]:
    """Returns the body. Raises: ApiError 400 when it is no JSON object."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object.")
    return body
