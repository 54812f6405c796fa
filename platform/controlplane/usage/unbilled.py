"""Finds requests that were sent to an engine and have no row: their web process died, or stopped,
and nobody read them to their end.

A web process notes each request in a sorted set of the store when it sends it (the dispatcher), and
the tokens are in the request's log whoever reads them. So the worker can write the row: once the
log has ended and a while has passed in which the web process would have written it. Rows are unique
by the request's id, so a late web process changes nothing.

Bounded by what the store keeps: a log for `log_ended_s` after its end. When the worker was away for
longer, the row says with `error_code` that the tokens are not known; without the request's record
nothing can be written, and the log says how many those were.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import redis

from controlplane.gateway.call import Call, Migration
from controlplane.gateway.errors import to_api_error
from controlplane.gateway.models import RequestRecord, RequestStatus
from controlplane.gateway.records import records_write, to_row
from controlplane.gateway.resume import call_of, places_of
from engine_pool.errors import PoolError, StreamAbandoned
from engine_pool.log_marks import Lost, Marked, decode_mark, epoch_of
from engine_pool.replay_rules import is_same_life
from engine_pool.token_log import (
    UNBILLED,
    LogTimes,
    TokenFrame,
    decode_all,
    log_key,
    request_key,
    route_key,
)

logger = logging.getLogger(__name__)

YOUNG_S: Final = 10.0
"""Requests that were sent so lately are not looked at: most have a row by then."""
GRACE_S: Final = 30.0
"""After a log's end, for a web process that is behind with its rows; at most a third of the time
that logs are kept."""
LOOKED_MAX: Final = 2000
"""Requests that one run looks at, oldest first: two round trips for all, a second or so."""
PAGE_FRAMES: Final = 500
WEB_PROCESS_LOST: Final = "web_process_lost"
"""Error code of a row that the worker wrote: nobody read the request to its end."""
TOKENS_UNKNOWN: Final = "tokens_unknown"
"""The same, when its log is gone: the row bills the prompt alone."""


OPEN_SHARE_MAX: Final = 0.95
"""Of the longest life of a request: one that has neither an end nor a reader by then lost its
engine, too. A moment later the store forgets it."""


@dataclass(slots=True)
class LoggedEnd:
    """What the logs of a request's choices say."""

    output_tokens: int = 0
    cached_tokens: int = 0
    queue_ms: float | None = None
    prefill_ms: float | None = None
    instances: tuple[str, ...] = ()
    migrations: int = 0
    replays: int = 0
    replay_notes: list[dict[str, str | int | float | None]] = field(default_factory=list)
    error_code: str = ""
    is_aborted: bool = False
    ended_before_s: float = 0.0
    """How long ago the last one ended; infinite when none has."""
    is_open: bool = False
    """An engine may still append."""
    is_gone: bool = False
    """A log is not, or no longer, there."""


def unbilled_write(*, store: "redis.Redis[bytes]", times: LogTimes, now_unix_s: float) -> int:
    """Writes the rows of requests that ended without one; returns how many.

    Raises: redis.RedisError, DatabaseError.
    """
    found = store.zrangebyscore(UNBILLED, "-inf", now_unix_s - YOUNG_S, start=0, num=LOOKED_MAX)
    ids = [request_id.decode() for request_id in found]
    with_row = set(
        RequestRecord.objects.filter(request_id__in=ids).values_list("request_id", flat=True)
    )
    rows, lost = [], []
    for request_id in ids:
        if request_id in with_row:
            continue
        names = store.hkeys(request_key(request_id))
        if not names:
            lost.append(request_id)
        elif (row := _row_of(store, times, request_id, names)) is not None:
            rows.append(row)
    records_write(rows)
    done = [*with_row, *lost, *(row.request_id for row in rows)]
    if done:
        store.zrem(UNBILLED, *done)
    if rows or lost:
        logger.warning(
            "%d requests whose web process was lost were recorded from the store; of %d others"
            " nothing is left there",
            len(rows),
            len(lost),
        )
    return len(rows)


def _row_of(
    store: "redis.Redis[bytes]", times: LogTimes, request_id: str, names: Sequence[bytes]
) -> RequestRecord | None:
    """Returns the row of a request that ended a while ago, None when it has not."""
    places = places_of(dict.fromkeys(names, b""))
    state = _log_state(store, times, places)
    if not state.is_open and state.ended_before_s < min(GRACE_S, times.ended_s / 3):
        return None
    # Not its body, which may be long.
    wanted = [name for name in names if name != b"body"]
    values = store.hmget(request_key(request_id), wanted)
    fields = {name: value for name, value in zip(wanted, values, strict=True) if value is not None}
    try:
        call = call_of(request_id, fields, places_of(fields))
    except KeyError:
        # It went between the two reads.
        return None
    if state.is_open:
        age_s = time.monotonic() - call.arrived_s
        if age_s < OPEN_SHARE_MAX * times.live_s or _is_read(store, places):
            return None
    call.prompt_tokens = int(fields.get(b"prompt_tokens", b"0"))
    return row_of(call, _read_logs(store, state, places), now_s=time.monotonic())


def row_of(call: Call, end: LoggedEnd, *, now_s: float) -> RequestRecord:
    """Returns the row of a request as its logs tell it. Pure."""
    call.output_tokens, call.cached_tokens = end.output_tokens, end.cached_tokens
    call.note_times(end.queue_ms, end.prefill_ms)
    if end.instances:
        call.instances = list(end.instances)
        call.migrations, call.replays = end.migrations, end.replays
        call.replay_notes = end.replay_notes
    code = end.error_code or (TOKENS_UNKNOWN if end.is_gone else WEB_PROCESS_LOST)
    error = PoolError("")
    error.code = code
    is_ours = code == StreamAbandoned.code or to_api_error(error).status >= 500
    is_partial = bool(end.error_code) or end.is_aborted or end.is_gone or end.is_open
    is_endless = end.ended_before_s == float("inf")
    return to_row(
        call,
        RequestStatus.FAILED,
        code,
        # Nobody read it because the web process was gone.
        is_our_fault=is_ours,
        is_partial=is_partial,
        now_s=now_s if is_endless else max(call.arrived_s, now_s - end.ended_before_s),
    )


def _log_state(
    store: "redis.Redis[bytes]", times: LogTimes, engine_ids: Iterable[str]
) -> LoggedEnd:
    """Returns whether the logs have ended, and when, without reading them. One round trip."""
    pipe = store.pipeline(transaction=False)
    for engine_id in engine_ids:
        pipe.xrevrange(log_key(engine_id), count=1)
        pipe.pttl(log_key(engine_id))
        pipe.exists(route_key(engine_id))
    answers = pipe.execute()
    end = LoggedEnd(ended_before_s=float("inf"))
    for last, left_ms, has_route in zip(*[iter(answers)] * 3, strict=True):
        if last and b"e" in last[0][1]:
            # A log that has ended lives for `ended_s` from then on.
            ago_s = max(0.0, times.ended_s - left_ms / 1000)
            end.ended_before_s = min(end.ended_before_s, ago_s)
        elif has_route:
            end.is_open = True
        else:
            end.is_gone = True
    return end


def _is_read(store: "redis.Redis[bytes]", engine_ids: Iterable[str]) -> bool:
    """Says whether a web process listens to any of the logs."""
    channels = [c for i in engine_ids if (c := store.get(route_key(i))) is not None]
    return bool(channels) and any(heard for _, heard in store.pubsub_numsub(*channels))


def _read_logs(store: "redis.Redis[bytes]", end: LoggedEnd, engine_ids: Iterable[str]) -> LoggedEnd:
    """Fills in what the frames say."""
    for engine_id in engine_ids:
        _add(end, list(_entries(store, engine_id)))
    return end


def _add(end: LoggedEnd, entries: Sequence[TokenFrame | Marked]) -> None:
    frames = [one for one in entries if isinstance(one, TokenFrame)]
    if not frames:
        return
    first, last = frames[0], frames[-1]
    end.output_tokens += last.end
    end.cached_tokens = max(end.cached_tokens, first.cached_tokens)
    if end.queue_ms is None:
        end.queue_ms, end.prefill_ms = first.queue_ms, first.prefill_ms
    _add_visits(end, entries)
    if last.error is not None:
        end.error_code = last.error.code
    end.is_aborted |= last.finish_reason == "abort"


def _add_visits(end: LoggedEnd, entries: Sequence[TokenFrame | Marked]) -> None:
    """Follows a request from instance to instance, as its reader does (engine_pool/stream.py)."""
    visited: list[str] = []
    lost: list[Lost] = []
    for entry in entries:
        if isinstance(entry, Marked):
            if not (lost and is_same_life(lost[-1], entry.lost)):
                lost.append(entry.lost)
        elif entry.error is None and (lost or visited[-1:] != [entry.instance]):
            if lost:
                end.replays += len(lost)
                end.replay_notes.append(_note(lost, entry))
            elif visited:
                end.migrations += 1
            visited.append(entry.instance)
            lost = []
    end.instances = end.instances or tuple(visited)


def _note(lost: Sequence[Lost], frame: TokenFrame) -> dict[str, str | int | float | None]:
    why = tuple(one.why for one in lost)
    facts = Migration(0, lost[-1].instance, frame.instance, frame.start, None, why).facts
    return {**facts, "at_ms": None}


def _entries(store: "redis.Redis[bytes]", engine_id: str) -> Iterator[TokenFrame | Marked]:
    low = "-"
    while entries := store.xrange(log_key(engine_id), low, "+", count=PAGE_FRAMES):
        for entry_id, fields in entries:
            for name, value in fields.items():
                if name != b"x":
                    yield from (m for m in decode_all(value) if isinstance(m, TokenFrame))
                elif (lost := decode_mark(value)) is not None:
                    yield Marked(epoch_of(entry_id), lost)
        low = f"({entries[-1][0].decode()}"
