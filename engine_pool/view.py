"""The shared view of the pool, in the store: who reports, how everybody else sees it.

Engines push their loads, the pool process their statuses, web processes what they have just sent
(the in-flight ledger, so that a stale report does not make a herd). Each web
process keeps the whole view in memory; a decision never waits for the store.

| key | type | holds |
|---|---|---|
| ferry:statuses | hash | instance -> InstanceStatus, as msgpack |
| ferry:loads | hash | instance -> InstanceLoad, as msgpack |
| ferry:events | stream | FleetEvents, newest EVENTS_KEPT |
| ferry:samples | stream | FleetSamples, one a second, newest SAMPLES_KEPT |
| ferry:moves | hash | migration id -> MoveReport of each move that goes on |
| ferry:moves:ended | stream | last MoveReports of ended moves, newest MOVES_KEPT |
| ferry:fleet | channel | `tag + msgpack`: S status, L load, D sent, E event, M move, G gone |
| ferry:incarnation | string | made anew when the store lost its memory |

All but the last are a pool's; the names are those of the environment's own pool, others have theirs
below `ferry:pool:<name>:` (pool_keys.py).
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec
import redis
import redis.asyncio

from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.types import (
    FleetEvent,
    FleetSample,
    InFlight,
    InstanceLoad,
    InstanceName,
    InstanceStatus,
)
from migration.report import MoveEnd, MoveReport, MoveState

STATUSES: Final = FIRST.statuses
LOADS: Final = FIRST.loads
EVENTS: Final = FIRST.events
SAMPLES: Final = FIRST.samples
SAMPLES_KEPT: Final = 900
"""Samples, one a second: the charts show ten minutes, and the gap after a reload is filled from
here."""
FLEET_CHANNEL: Final = FIRST.fleet
INCARNATION: Final = "ferry:incarnation"
EVENTS_KEPT: Final = 1000
"""Events; the pages show 50, the database keeps all (a Celery task copies them every few
seconds)."""
MOVES: Final = FIRST.moves
MOVES_ENDED: Final = FIRST.moves_ended
MOVES_KEPT: Final = 2000
"""Ended moves that wait for the database; a Celery task copies them every few seconds."""

ENDED_LOOKED_AT: Final = 50
"""Ended moves among which one is looked for: more than end in a second."""
SEQ_OF_ANOTHER: Final = 1_000_000
"""Added to a report's number by who ends the move for its source: above any that is on its way."""

_encode = msgspec.msgpack.Encoder().encode
decode_status = msgspec.msgpack.Decoder(InstanceStatus).decode
decode_load = msgspec.msgpack.Decoder(InstanceLoad).decode
decode_event = msgspec.msgpack.Decoder(FleetEvent).decode
decode_sample = msgspec.msgpack.Decoder(FleetSample).decode
decode_move = msgspec.msgpack.Decoder(MoveReport).decode
_decode_in_flight = msgspec.msgpack.Decoder(list[InFlight]).decode

Change = (
    InstanceStatus | InstanceLoad | FleetEvent | MoveReport | tuple[InFlight, ...] | InstanceName
)
"""What arrives on the fleet's channel; a bare InstanceName is an instance that is gone for good."""


def decode_change(blob: bytes) -> Change:
    """Decodes one message of the fleet's channel. Raises: ValueError for an unknown tag."""
    tag, body = blob[:1], memoryview(blob)[1:]
    if tag == b"L":
        return decode_load(body)
    if tag == b"S":
        return decode_status(body)
    if tag == b"D":
        return tuple(_decode_in_flight(body))
    if tag == b"E":
        return decode_event(body)
    if tag == b"M":
        return decode_move(body)
    if tag == b"G":
        return InstanceName(bytes(body).decode())
    raise ValueError(f"unknown tag {tag!r} on {FLEET_CHANNEL}")


class Bulletin:
    """The reporting side, for engines and the pool process. Blocking. Raises: redis.RedisError."""

    def __init__(self, store: "redis.Redis[bytes]", keys: PoolKeys = FIRST) -> None:
        self._store = store
        self._keys = keys

    def report_load(self, load: InstanceLoad) -> None:
        self._set_and_tell(self._keys.loads, load.instance, b"L", _encode(load))

    def report_status(self, status: InstanceStatus) -> None:
        self._set_and_tell(self._keys.statuses, status.instance, b"S", _encode(status))

    def _set_and_tell(self, key: str, field: str, tag: bytes, body: bytes) -> None:
        pipe = self._store.pipeline(transaction=False)
        pipe.hset(key, field, body)
        pipe.publish(self._keys.fleet, tag + body)
        pipe.execute()

    def forget(self, instance: InstanceName) -> None:
        """Removes an instance from the view."""
        pipe = self._store.pipeline(transaction=False)
        pipe.hdel(self._keys.statuses, instance)
        pipe.hdel(self._keys.loads, instance)
        pipe.publish(self._keys.fleet, b"G" + instance.encode())
        pipe.execute()

    def report_event(self, event: FleetEvent) -> None:
        body = _encode(event)
        pipe = self._store.pipeline(transaction=False)
        pipe.xadd(self._keys.events, {"e": body}, maxlen=EVENTS_KEPT, approximate=True)
        pipe.publish(self._keys.fleet, b"E" + body)
        pipe.execute()

    def report_move(self, move: MoveReport) -> None:
        """Shows where a move is; one that has ended is kept for the database instead."""
        body = _encode(move)
        pipe = self._store.pipeline(transaction=False)
        if move.state.is_end:
            pipe.hdel(self._keys.moves, move.migration_id)
            pipe.xadd(self._keys.moves_ended, {"m": body}, maxlen=MOVES_KEPT, approximate=True)
        else:
            pipe.hset(self._keys.moves, move.migration_id, body)
        pipe.publish(self._keys.fleet, b"M" + body)
        pipe.execute()

    def report_move_end(self, end: MoveEnd) -> None:
        """Ends a move in the view whose source cannot say so any more; nothing when it has.

        The first end stands: a source that asks what became of its commit reports on after its
        destination has said so, and may die then.
        """
        found: bytes | None = self._store.hget(self._keys.moves, end.migration_id)
        if found is None:
            return
        if self._has_ended(end.migration_id):
            self._store.hdel(self._keys.moves, end.migration_id)
            return
        last = decode_move(found)
        self.report_move(
            replace(
                last,
                seq=last.seq + SEQ_OF_ANOTHER,
                state=end.state,
                at_unix_s=time.time(),
                abort_code="" if end.state is MoveState.COMMITTED else end.code,
                abort_reason="" if end.state is MoveState.COMMITTED else end.why,
            )
        )

    def _has_ended(self, migration_id: str) -> bool:
        entries = self._store.xrevrange(self._keys.moves_ended)
        return any(decode_move(fields[b"m"]).migration_id == migration_id for _, fields in entries)

    def report_sample(self, sample: FleetSample) -> None:
        """Keeps a second of history; nobody is told, since the pages sample the live view
        themselves."""
        self._store.xadd(
            self._keys.samples, {"s": _encode(sample)}, maxlen=SAMPLES_KEPT, approximate=True
        )


async def report_sent(
    store: "redis.asyncio.Redis[bytes]", sent: Sequence[InFlight], keys: PoolKeys = FIRST
) -> None:
    """Tells all web processes what this one has just sent to engines. Raises: redis.RedisError."""
    await store.publish(keys.fleet, encode_sent(sent))


def encode_sent(sent: Sequence[InFlight]) -> bytes:
    """Returns the message that `report_sent` publishes, for a pipeline of the caller's."""
    return b"D" + _encode(list(sent))


async def store_incarnation(store: "redis.asyncio.Redis[bytes]") -> str:
    """Returns the store's own name; another one than before means that it lost its memory."""
    await store.set(INCARNATION, uuid.uuid4().hex, nx=True)
    name: bytes | None = await store.get(INCARNATION)
    assert name is not None, "set just before"
    return name.decode()


async def read_view(
    store: "redis.asyncio.Redis[bytes]", keys: PoolKeys = FIRST
) -> tuple[tuple[InstanceStatus, ...], tuple[InstanceLoad, ...]]:
    """Reads all statuses and loads. Subscribe to `keys.fleet` first: then nothing is missed."""
    pipe = store.pipeline(transaction=False)
    pipe.hvals(keys.statuses)
    pipe.hvals(keys.loads)
    statuses, loads = await pipe.execute()
    return tuple(map(decode_status, statuses)), tuple(map(decode_load, loads))


async def read_moves(
    store: "redis.asyncio.Redis[bytes]", keys: PoolKeys = FIRST
) -> tuple[MoveReport, ...]:
    """Returns the moves that go on, also those whose source died meanwhile."""
    return tuple(map(decode_move, await store.hvals(keys.moves)))


async def read_ended_move(
    store: "redis.asyncio.Redis[bytes]", migration_id: str, keys: PoolKeys = FIRST
) -> MoveReport | None:
    """Returns the last report of a move that has just ended, None when it is not among the
    newest."""
    entries = await store.xrevrange(keys.moves_ended, count=ENDED_LOOKED_AT)
    reports = (decode_move(fields[b"m"]) for _, fields in entries)
    return next((r for r in reports if r.migration_id == migration_id), None)


async def read_samples(
    store: "redis.asyncio.Redis[bytes]", since_unix_s: float, keys: PoolKeys = FIRST
) -> list[FleetSample]:
    """Returns the samples since a time, oldest first."""
    entries = await store.xrange(keys.samples, f"{int(since_unix_s * 1000)}-0")
    return [decode_sample(fields[b"s"]) for _, fields in entries]


async def read_events(
    store: "redis.asyncio.Redis[bytes]", count: int = 50, keys: PoolKeys = FIRST
) -> list[FleetEvent]:
    """Returns the newest events, newest first."""
    entries = await store.xrevrange(keys.events, count=count)
    return [decode_event(fields[b"e"]) for _, fields in entries]
