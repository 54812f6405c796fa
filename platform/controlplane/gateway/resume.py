"""The record of a request from which any web process can go on with its answer."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis

from controlplane.gateway.call import Call
from controlplane.gateway.errors import STARTING_RETRY_S, ApiError
from controlplane.tenants.selectors import Target
from engine_pool.token_log import request_key
from engine_pool.types import PriorityClass

if TYPE_CHECKING:
    from redis.asyncio import Redis

PROMPT = "prompt:"
"""Before a prompt's id: the digest of its tokens. Who sends the request again makes them anew from
the body, and sees by it that they are the same."""
_PLACE = b"at:"
"""Before an engine request's id: the instance that took it. It stays there when the request moves:
where it is now, the engines report; where it was, its tokens say; and a replay begins here."""


@dataclass(frozen=True, slots=True)
class Resumable:
    """A request that has been sent to an engine before."""

    call: Call
    body: bytes
    created_unix_s: int


def record_fields(call: Call, body: bytes, created_unix_s: int) -> dict[str, bytes]:
    """Returns what the record of a new request holds; the dispatcher adds the instances."""
    target = call.target
    return {
        "endpoint": call.endpoint.encode(),
        "body": body,
        "created": str(created_unix_s).encode(),
        "tenant_id": str(call.tenant_id).encode(),
        "tenant": call.tenant.encode(),
        "class": call.priority_class.value.encode(),
        "pool": call.pool.encode(),
        "model": call.model.encode(),
        "weight": repr(call.weight).encode(),
        # What its row needs, whoever writes it.
        "key_id": str(call.key_id).encode(),
        "client_request_id": call.client_request_id.encode(),
        "arrived": repr(call.arrived_unix_s).encode(),
        "ttft_target_ms": _number(target.ttft_ms),
        "tpot_target_ms": _number(target.tpot_ms),
    }


async def find(
    store: "Redis[bytes]", request_id: str, *, endpoint: str, tenant_id: int
) -> Resumable:
    """Returns the request. Raises: ApiError 404 unless this tenant made it; 503 without a store."""
    try:
        fields = await store.hgetall(request_key(request_id))
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise ApiError(
            503,
            "The store does not answer.",
            "store_unavailable",
            retry_after_s=STARTING_RETRY_S,
        ) from error
    is_theirs = fields.get(b"tenant_id") == str(tenant_id).encode()
    # Whether another tenant's stream exists is nobody's business.
    if not is_theirs or fields.get(b"endpoint") != endpoint.encode():
        raise ApiError(404, f"There is no stream {request_id} to resume.", "stream_not_found")
    return _to_resumable(request_id, fields)


def _to_resumable(request_id: str, fields: Mapping[bytes, bytes]) -> Resumable:
    return Resumable(
        call_of(request_id, fields, places_of(fields)), fields[b"body"], int(fields[b"created"])
    )


def places_of(fields: Mapping[bytes, bytes]) -> dict[str, tuple[str, str]]:
    """Returns engine request id -> (instance, incarnation) as they were sent."""
    places = {}
    for name, value in fields.items():
        if name.startswith(_PLACE):
            instance, _, incarnation = value.decode().partition(" ")
            places[name[len(_PLACE) :].decode()] = (instance, incarnation)
    return places


def call_of(
    request_id: str, fields: Mapping[bytes, bytes], places: dict[str, tuple[str, str]]
) -> Call:
    """Returns the call as its record tells it. Raises: KeyError, ValueError for no such record."""
    arrived_unix_s = float(fields.get(b"arrived") or fields[b"created"])
    call = Call(
        request_id=request_id,
        endpoint=fields[b"endpoint"].decode(),
        tenant_id=int(fields[b"tenant_id"]),
        tenant=fields[b"tenant"].decode(),
        priority_class=PriorityClass(fields[b"class"].decode()),
        pool=fields[b"pool"].decode(),
        model=fields[b"model"].decode(),
        key_id=int(fields.get(b"key_id", b"0")),
        client_request_id=fields.get(b"client_request_id", b"").decode(),
        target=Target(_read(fields, b"ttft_target_ms"), _read(fields, b"tpot_target_ms")),
        places=places,
        weight=float(fields.get(b"weight", b"1.0")),
        prompts={
            name[len(PROMPT) :].decode(): value
            for name, value in fields.items()
            if name.startswith(PROMPT.encode())
        },
        arrived_unix_s=arrived_unix_s,
        arrived_s=time.monotonic() - (time.time() - arrived_unix_s),
    )
    call.note_sent(next((instance for instance, _ in places.values()), ""))
    return call


def _number(value: float | None) -> bytes:
    return b"" if value is None else repr(value).encode()


def _read(fields: Mapping[bytes, bytes], name: bytes) -> float | None:
    text = fields.get(name, b"")
    return float(text) if text else None


def body_of(resumable: Resumable) -> dict[str, object]:
    """Returns the request's body, as a stream: what is resumed comes in events."""
    body: dict[str, object] = json.loads(resumable.body)
    body["stream"] = True
    return body
