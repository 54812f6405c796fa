"""The doors of the API: each parses, authorises, calls one function, answers."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from controlplane.fleet.watch import degraded
from controlplane.gateway import completions, idempotency, limits, resume
from controlplane.gateway.completions import Completion, EventStream
from controlplane.gateway.errors import ApiError
from controlplane.gateway.exchange import ApiRequest, ApiResponse
from controlplane.gateway.fields import check_fields
from controlplane.gateway.key_access import NO_KEY, authenticate
from controlplane.gateway.pools import Pools
from controlplane.gateway.sse import Mark, Numbering, TellMove, move_comment, parse_mark
from controlplane.scaling.metrics import collector as scaling
from controlplane.tenants.key_cache import KeyCache
from controlplane.tenants.selectors import KeyPolicy

DETACH_HEADER: Final = "x-ferry-detach-s"
"""Seconds that a stream goes on when its client has left, so that it can be resumed."""
REPLAYS_HEADER: Final = "x-ferry-replays"
"""How often the request was sent again after its engine was lost, so far; absent: never."""
INSTANCE_HEADER: Final = "x-ferry-instance"
"""The instance that took the request."""
EVENTS_HEADER: Final = "x-ferry-events"
"""1: the stream tells of moves, by comments that clients of OpenAI's API ignore."""
EVENTS: Final = "text/event-stream; charset=utf-8"

View = Callable[[ApiRequest], Awaitable[ApiResponse]]


class Views:
    """The doors of one web process."""

    def __init__(self, pools: Pools, keys: KeyCache) -> None:
        self._pools = pools
        self._keys = keys

    def find(self, method: str, path: str) -> View:
        """Returns the door for a path. Raises: ApiError 404 or 405."""
        doors = _DOORS.get(path)
        name = doors.get(method) if doors else None
        if doors is None:
            doors, name = _by_pattern(method, path)
        if not doors:
            raise ApiError(404, f"There is nothing at {path}.", "not_found")
        if name is None:
            raise ApiError(405, f"{path} takes {' or '.join(doors)}, not {method}.")
        view: View = getattr(self, name)
        return view

    async def livez(self, request: ApiRequest) -> ApiResponse:
        return ApiResponse(body=b'{"status":"alive"}')

    async def readyz(self, request: ApiRequest) -> ApiResponse:
        reason = self._pools.not_ready()
        away = degraded([runtime.client for runtime in self._pools.all()])
        parts = sorted(part for part, is_away in away.items() if is_away)
        # What is degraded is told, and does not count while requests are served without it.
        known = {"status": "ready"} if reason is None else {"reason": reason}
        body = json.dumps({**known, **({"degraded": parts} if parts else {})})
        return ApiResponse(200 if reason is None else 503, body.encode())

    async def metrics(self, request: ApiRequest) -> ApiResponse:
        # One store for all pools; what the loop of scaling says is read when somebody asks.
        for runtime in self._pools.all()[:1]:
            await scaling.read(runtime.client.store)
        return ApiResponse(body=generate_latest(), content_type=CONTENT_TYPE_LATEST)

    async def models(self, request: ApiRequest) -> ApiResponse:
        policy = await self._authenticate(request)
        cards = await self._cards(policy)
        return ApiResponse(body=json.dumps({"object": "list", "data": cards}).encode())

    async def model(self, request: ApiRequest) -> ApiResponse:
        policy = await self._authenticate(request)
        name = request.path.removeprefix("/v1/models/")
        for card in await self._cards(policy):
            if card["id"] == name:
                return ApiResponse(body=json.dumps(card).encode())
        raise ApiError(404, f"The model `{name}` does not exist.", "model_not_found", "model")

    async def _cards(self, policy: KeyPolicy) -> list[dict[str, Any]]:
        """Returns the models that a key may use, aliases too."""
        names = self._pools.models()
        if not names:
            self._pools.default.ready_front()
        cards = []
        for name, runtime in names.items():
            if policy.allows_model(name):
                card = (await runtime.ready_front().model_cards())[0]
                cards.append({**card, "id": name})
        return cards

    async def chat_completions(self, request: ApiRequest) -> ApiResponse:
        return await self._complete(request, "chat")

    async def completions(self, request: ApiRequest) -> ApiResponse:
        return await self._complete(request, "completions")

    async def chat_events(self, request: ApiRequest) -> ApiResponse:
        return await self._resume_by_path(request, "chat")

    async def completion_events(self, request: ApiRequest) -> ApiResponse:
        return await self._resume_by_path(request, "completions")

    async def tokenize(self, request: ApiRequest) -> ApiResponse:
        return await self._tokenize(request, "tokenize")

    async def detokenize(self, request: ApiRequest) -> ApiResponse:
        return await self._tokenize(request, "detokenize")

    async def _tokenize(self, request: ApiRequest, endpoint: str) -> ApiResponse:
        policy = await self._authenticate(request)
        body = completions.parse_json(request.body)
        runtime = self._pools.for_model(body.get("model"), policy)
        front = runtime.ready_front()
        check_fields(body, front.fields(endpoint), is_simulated=False)
        return ApiResponse(
            body=await front.tokenize(front.parse(endpoint, {**body, "model": runtime.model_name}))
        )

    async def _complete(self, request: ApiRequest, endpoint: str) -> ApiResponse:
        policy = await self._authenticate(request)
        if "last-event-id" in request.headers:
            mark = _mark(request.headers["last-event-id"])
            return await self._resume(endpoint, policy, mark.request_id, mark, _tells(request))
        headers = {**request.headers, "x-request-id": request.request_id}
        completion = completions.read(self._pools, endpoint, request.body, policy, headers)
        completion.detach_s = self._detach_s(request)
        tells = _tells(request)
        key = request.headers.get(idempotency.HEADER.lower())
        if key is not None:
            idempotency.check_key(key, is_stream=bool(completion.request.stream))
        if completion.request.stream:
            return await self._stream(completion, None, tells)
        if key is not None:
            once = idempotency.Once(policy.tenant_id, endpoint, key, request.body)
            return await self._answer_once(completion, once)
        body = await completions.answer(completion)
        return ApiResponse(body=body, headers=_place(completion))

    async def _answer_once(self, completion: Completion, once: idempotency.Once) -> ApiResponse:
        store = self._pools.default.client.store
        body, is_replay = await idempotency.run_once(
            store, once, lambda: completions.answer(completion)
        )
        more = idempotency.REPLAYED if is_replay else {}
        return ApiResponse(body=body, headers=_place(completion) | more)

    async def _resume_by_path(self, request: ApiRequest, endpoint: str) -> ApiResponse:
        policy = await self._authenticate(request)
        request_id = request.path.rsplit("/", 2)[1]
        text = request.headers.get("last-event-id")
        mark = _mark(text) if text else None
        if mark is not None and mark.request_id != request_id:
            raise ApiError(400, "Last-Event-ID is of another stream.", param="Last-Event-ID")
        return await self._resume(endpoint, policy, request_id, mark, _tells(request))

    async def _resume(
        self,
        endpoint: str,
        policy: KeyPolicy,
        request_id: str,
        mark: Mark | None,
        tell_move: TellMove | None,
    ) -> ApiResponse:
        completion = await resume_completion(self._pools, endpoint, policy, request_id)
        return await self._stream(completion, mark, tell_move)

    async def _stream(
        self, completion: Completion, after: Mark | None, tell_move: TellMove | None
    ) -> ApiResponse:
        call = completion.call
        numbering = Numbering(
            call.request_id, completion.choices, completion.created_unix_s, after, tell_move
        )
        events = EventStream(completion, numbering)
        try:
            await events.start()
        except BaseException:
            await events.aclose()
            raise
        return ApiResponse(content_type=EVENTS, stream=events, headers=_place(completion))

    async def _authenticate(self, request: ApiRequest) -> KeyPolicy:
        """Returns what the request's key allows. Raises: ApiError 401, 403, 503 (key_access.py)."""
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not text:
            raise ApiError(401, NO_KEY, "invalid_api_key")
        request.policy = await authenticate(self._keys, text.strip(), request.address)
        return request.policy

    def _detach_s(self, request: ApiRequest) -> float:
        text = request.headers.get(DETACH_HEADER)
        if text is None:
            return 0.0
        longest_s = self._pools.default.client.config.orphan_grace_s
        try:
            wanted_s = float(text)
        except ValueError:
            wanted_s = -1.0
        if not 0 <= wanted_s < float("inf"):
            raise ApiError(400, f"{DETACH_HEADER} must be seconds, 0 or more.", param=DETACH_HEADER)
        return min(wanted_s, longest_s)


async def resume_completion(
    pools: Pools, endpoint: str, policy: KeyPolicy, request_id: str
) -> Completion:
    """Returns a request that was sent before, to go on with its answer.

    Raises: ApiError 404 unless this tenant made it; 503.
    """
    pools.default.ready_front()
    store = pools.default.client.store
    found = await resume.find(store, request_id, endpoint=endpoint, tenant_id=policy.tenant_id)
    runtime = pools.get(found.call.pool)
    if runtime is None:
        raise ApiError(404, f"There is no stream {request_id} to resume.", "stream_not_found")
    request = completions.to_request(runtime.ready_front(), found.call, resume.body_of(found))
    admission = limits.admission_of(pools)
    return Completion(runtime, found.call, request, found.created_unix_s, policy, admission)


_DOORS: Final[dict[str, dict[str, str]]] = {
    "/livez": {"GET": "livez"},
    "/readyz": {"GET": "readyz"},
    "/healthz": {"GET": "readyz"},
    "/metrics": {"GET": "metrics"},
    "/v1/models": {"GET": "models"},
    "/v1/chat/completions": {"POST": "chat_completions"},
    "/v1/completions": {"POST": "completions"},
    "/tokenize": {"POST": "tokenize"},
    "/detokenize": {"POST": "detokenize"},
}


def _by_pattern(method: str, path: str) -> tuple[dict[str, str], str | None]:
    parts = path.strip("/").split("/")
    doors: dict[str, str] = {}
    match parts:
        case ["v1", "models", *rest] if rest:
            doors = {"GET": "model"}
        case ["v1", "chat", "completions", _, "events"]:
            doors = {"GET": "chat_events"}
        case ["v1", "completions", _, "events"]:
            doors = {"GET": "completion_events"}
    return doors, doors.get(method)


def _place(completion: Completion) -> dict[str, str]:
    call, headers = completion.call, dict(completion.headers)
    if call.instance:
        headers[INSTANCE_HEADER] = call.instance
    if call.replays:
        headers[REPLAYS_HEADER] = str(call.replays)
    return headers


def _tells(request: ApiRequest) -> TellMove | None:
    """Returns how the stream tells of moves. Raises: ApiError 400."""
    text = request.headers.get(EVENTS_HEADER, "0")
    if text not in ("0", "1"):
        raise ApiError(400, f"{EVENTS_HEADER} must be 1 or 0.", param=EVENTS_HEADER)
    return move_comment if text == "1" else None


def _mark(text: str) -> Mark:
    mark = parse_mark(text)
    if mark is None:
        raise ApiError(
            400, "Last-Event-ID must be the id of an event of ours.", param="Last-Event-ID"
        )
    return mark
