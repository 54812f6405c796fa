"""Whose the requests are that run now: a report names neither tenant nor model.

The record that every request has in the store does, and it never changes, so it is read once a
process. Whose request has no record there is shown to the platform's people only: fails closed.
"""

import asyncio
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import redis
from asgiref.sync import async_to_sync

from controlplane.tenants.access import Access
from engine_pool.client import pool_client, served_clients
from engine_pool.errors import StoreUnavailable
from engine_pool.token_log import request_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

ASKED_MAX: Final = 5000
"""Records asked for at once, about 50 ms; a pool rarely runs more requests."""
KEPT_MAX: Final = 20_000
"""Records in memory, about 10 MB."""
STORE_TIMEOUT_S: Final = 2.0
_FIELDS: Final = ("tenant_id", "tenant", "model", "pool", "endpoint", "class", "created")
_CHILD: Final = re.compile(r"(?:\d+_)?((?:chatcmpl|cmpl)-[0-9a-f]+)(?:-\d+)?")
_PLACE: Final = "at:"
"""Before an engine request's id in a record (gateway/resume.py)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a request's record says."""

    tenant_id: int
    tenant: str
    """Slug."""
    model: str
    pool: str
    endpoint: str
    priority_class: str
    created_unix_s: float


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that was sent to engines and has not been forgotten since."""

    facts: Facts
    places: Mapping[str, str]
    """Engine request id -> the instance that took it."""


def public_id(engine_id: str) -> str:
    """Returns the id that the client saw: a choice of several is `0_<id>`, a prompt `<id>-0`."""
    found = _CHILD.fullmatch(engine_id)
    return found[1] if found else engine_id


def may_see(access: Access, facts: Facts | None) -> bool:
    """Says whether somebody may see a request with this record."""
    return access.sees_all or (facts is not None and facts.tenant_id in access.tenants)


def facts_of(request_ids: Iterable[str]) -> dict[str, Facts]:
    """Returns the records of requests by public id, as far as there are any.

    Raises: StoreUnavailable.
    """
    wanted = list(dict.fromkeys(request_ids))
    with _lock:
        known = {i: _known[i] for i in wanted if i in _known}
    missing = [i for i in wanted if i not in known][:ASKED_MAX]
    if missing:
        read = async_to_sync(_read)(missing)
        with _lock:
            _known.update(read)
            while len(_known) > KEPT_MAX:
                _known.popitem(last=False)
        known |= read
    return known


def sent_request(request_id: str) -> SentRequest | None:
    """Returns what the store still knows of a request. Raises: StoreUnavailable."""
    return async_to_sync(_read_one)(request_id)


_known: OrderedDict[str, Facts] = OrderedDict()
_lock = threading.Lock()


def _store() -> "Redis[bytes]":
    # One store for all pools.
    return (served_clients() or [pool_client()])[0].store


async def _read(request_ids: Sequence[str]) -> dict[str, Facts]:
    pipe = _store().pipeline(transaction=False)
    for request_id in request_ids:
        pipe.hmget(request_key(request_id), list(_FIELDS))
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            answers = await pipe.execute()
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable("The store does not answer; it knows whose they are.") from error
    found = zip(request_ids, answers, strict=True)
    return {i: facts for i, answer in found if (facts := _facts(answer)) is not None}


async def _read_one(request_id: str) -> SentRequest | None:
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            fields = await _store().hgetall(request_key(request_id))
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable("The store does not answer; it knows whose it is.") from error
    values: list[bytes | None] = [fields.get(name.encode()) for name in _FIELDS]
    facts = _facts(values)
    if facts is None:
        return None
    told = {name.decode(): value.decode() for name, value in fields.items() if name != b"body"}
    places = {
        name.removeprefix(_PLACE): value.partition(" ")[0]
        for name, value in told.items()
        if name.startswith(_PLACE)
    }
    return SentRequest(facts, places)


def _facts(answer: Sequence[bytes | None]) -> Facts | None:
    tenant_id, tenant, model, pool, endpoint, priority_class, created = (
        (value or b"").decode() for value in answer
    )
    if not tenant_id.isdigit():
        return None
    return Facts(int(tenant_id), tenant, model, pool, endpoint, priority_class, float(created or 0))
