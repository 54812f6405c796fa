"""The log of a request's output tokens, in the store: who may append, what a reader gets.

A stream belongs to the request, not to an engine. Each frame carries the number of output tokens
before it (`start`), so a reader knows a gap or a repeat when it sees one. The entry id is
`epoch-position`; the store refuses an id that is not above the last one, which shuts out a producer
that was replaced (fencing): a takeover first appends a higher epoch with position 0, then reads the
end of the log, then goes on in that epoch. A move raises the epoch by one: all that its source has
produced is in the log before its destination appends.

One script call an engine step appends the frames of all requests and publishes what was accepted,
once for each web process that listens. A frame is length-prefixed msgpack, since Lua's own packing
breaks UTF-8.

| key | type | holds |
|---|---|---|
| ferry:log:<request> | stream | the frames; field `f`, the last one `e`, a fence `x` |
| ferry:route:<request> | string | its reader's channel; without it appends are refused |
| ferry:request:<request> | hash | what a resume needs (written by the gateway) |
| ferry:unbilled | sorted set | requests that were sent, by time, until they have a row |
| ferry:tokens:<web process> | channel | length-prefixed frames of all the requests it reads |
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import redis
import redis.asyncio

from engine_pool.errors import InstanceLeaving
from engine_pool.log_marks import (
    FENCE_EPOCHS,
    Lost,
    Marked,
    decode_mark,
    encode_mark,
    epoch_of,
)
from engine_pool.log_scripts import APPEND, ATTACH, FENCE, RECLAIM

_LENGTH = struct.Struct(">I")


UNBILLED: Final = "ferry:unbilled"


def log_key(request_id: str) -> str:
    return f"ferry:log:{request_id}"


def route_key(request_id: str) -> str:
    return f"ferry:route:{request_id}"


def request_key(request_id: str) -> str:
    return f"ferry:request:{request_id}"


def token_channel(web_process: str) -> str:
    return f"ferry:tokens:{web_process}"


class StreamError(msgspec.Struct, array_like=True, frozen=True):
    """Why a request ended without a result; `code` is one of `engine_pool.errors`."""

    code: str
    message: str


class TokenFrame(msgspec.Struct, array_like=True, frozen=True, tag="t"):
    """What one step produced for one request; the unit of the log and of the channel."""

    request_id: str
    epoch: int
    start: int
    """Output tokens of the request before this frame."""
    token_ids: tuple[int, ...]
    instance: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0
    detail: bytes | None = None
    error: StreamError | None = None
    """Set in a last frame only: the request failed. With InstanceLeaving's code it is none: it
    becomes a mark in the log (log_marks.py), and the request goes on elsewhere."""
    queue_ms: float | None = None
    """In a request's first frame: from its arrival to the engine's first step with it."""
    prefill_ms: float | None = None
    """There, too: from that step's beginning to the first token."""

    @property
    def end(self) -> int:
        """Output tokens after this frame."""
        return self.start + len(self.token_ids)

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    @property
    def is_leaving(self) -> bool:
        """It says that the request goes on elsewhere."""
        return self.error is not None and self.error.code == InstanceLeaving.code

    @property
    def entry_id(self) -> str:
        if self.is_leaving:
            return f"{self.epoch + FENCE_EPOCHS}-0"
        # A last frame may bring no token; its id must still be above its predecessor's.
        return f"{self.epoch}-{self.start + max(1, len(self.token_ids))}"


class Superseded(msgspec.Struct, array_like=True, frozen=True, tag="s"):
    """Tells a web process that another reader took this request's stream."""

    request_id: str


Message = TokenFrame | Superseded | Lost
"""What a web process's channel carries."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Returns the message as length-prefixed msgpack."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_all(blob: bytes) -> Iterator[Message]:
    """Yields the messages of a concatenation of encoded ones. Raises: msgspec.DecodeError on
    garbage."""
    at = 0
    view = memoryview(blob)
    while at < len(blob):
        (size,) = _LENGTH.unpack_from(blob, at)
        at += _LENGTH.size
        yield _decoder.decode(view[at : at + size])
        at += size


@dataclass(frozen=True, slots=True)
class LogTimes:
    """How long a log stays in the store."""

    live_s: int = 3600
    """Longest life of an unfinished request's log; also the longest request."""
    ended_s: int = 300
    """How long a finished stream can still be resumed."""


_FENCED, _ENDED = 0, 1
_ANY_ENTRY: Final = "*"
_LAST_ENTRIES: Final = 8
"""Entries from a log's end among which a frame is looked for: fences seldom follow each other."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a step's frames; the lists hold request ids."""

    refused: tuple[str, ...]
    """Not taken: another producer owns the stream, or the store has forgotten it. The engine must
    abort these."""
    unheard: tuple[str, ...]
    """Logged, but no web process listens; somebody may still resume them."""


class TokenLogWriter:
    """The producer's side; one engine's publishing thread owns it. Blocking."""

    def __init__(self, store: "redis.Redis[bytes]", times: LogTimes) -> None:
        self._times = times
        self._append = store.register_script(APPEND)
        self._reclaim = store.register_script(RECLAIM)

    def reclaim(self, request_id: str, epoch: int) -> int | None:
        """Shuts out a producer of the next epoch that has appended nothing yet.

        Returns the epoch to go on with, None when the stream is the other producer's, or over.
        Raises: redis.RedisError.
        """
        answer = self._reclaim(keys=[log_key(request_id)], args=[epoch, self._times.live_s])
        return int(answer) or None

    def append(
        self, frames: Sequence[TokenFrame], firsts: frozenset[str] = frozenset()
    ) -> Appended:
        """Appends one step's frames with one call.

        `firsts`: ids of the requests whose first frame is among them.
        Raises: redis.RedisError when the store does not answer; a retry of the same frames is safe,
        since the log refuses what it already has (and then reports it as refused).
        """
        keys: list[str] = []
        args: list[str | bytes | int] = [self._times.live_s, self._times.ended_s]
        for frame in frames:
            first = frame.request_id in firsts
            kind = ("b" if first else "e") if frame.is_last else ("s" if first else "")
            blob = encode(frame)
            if frame.error is not None and frame.is_leaving:
                kind, why = "x", frame.error.message
                blob = encode_mark(Lost(frame.request_id, frame.instance, why=why, is_death=False))
            keys += (log_key(frame.request_id), route_key(frame.request_id))
            args += (frame.entry_id, blob, kind)
        refused, unheard = self._append(keys=keys, args=args)
        return Appended(
            tuple(frames[i - 1].request_id for i in refused),
            tuple(frames[i - 1].request_id for i in unheard),
        )


class TokenLogReader:
    """The reader's side of single logs; the live frames come over the web process's channel."""

    def __init__(self, store: "redis.asyncio.Redis[bytes]", times: LogTimes) -> None:
        self._store = store
        self.times = times
        self._attach = store.register_script(ATTACH)
        self._fence = store.register_script(FENCE)
        self._append = store.register_script(APPEND)

    async def open(self, request_ids: Sequence[str], channel: str) -> None:
        """Makes the logs writable and routes them to `channel`. Raises: redis.RedisError."""
        pipe = self._store.pipeline(transaction=False)
        self.open_in(pipe, request_ids, channel)
        await pipe.execute()

    def open_in(
        self, pipe: "redis.asyncio.client.Pipeline[bytes]", request_ids: Sequence[str], channel: str
    ) -> None:
        """Adds what `open` does to a pipeline that the caller executes."""
        for request_id in request_ids:
            pipe.set(route_key(request_id), channel, ex=self.times.live_s)

    async def attach(self, request_id: str, channel: str) -> str | None:
        """Routes the live frames to `channel` and tells the old reader. Returns its channel, None
        if gone.

        Call it before `read_after`, and hold the live frames meanwhile: then nothing is missed.
        """
        superseded = encode(Superseded(request_id))
        old = await self._attach(keys=[route_key(request_id)], args=[channel, superseded])
        return None if old is None else old.decode()

    async def read_after(
        self, request_id: str, *, after_entry: str | None = None, count: int = 512
    ) -> tuple[list[TokenFrame], str | None]:
        """Returns up to `count` frames after an entry id (from the start when None) and the last id
        read.

        The id is None when the log holds nothing more.
        """
        found, last = await self.read_all_after(request_id, after_entry=after_entry, count=count)
        return [one for one in found if isinstance(one, TokenFrame)], last

    async def read_all_after(
        self, request_id: str, *, after_entry: str | None = None, count: int = 512
    ) -> "tuple[list[TokenFrame | Marked], str | None]":
        """As `read_after`, with the marks among the frames."""
        low = "-" if after_entry is None else f"({after_entry}"
        entries: Any = await self._store.xrange(log_key(request_id), low, "+", count=count)
        found: list[TokenFrame | Marked] = []
        for entry_id, fields in entries:
            for name, value in fields.items():
                if name != b"x":
                    found += (m for m in decode_all(value) if isinstance(m, TokenFrame))
                elif (lost := decode_mark(value)) is not None:
                    found.append(Marked(epoch_of(entry_id), lost))
        return found, entries[-1][0].decode() if entries else None

    async def newest(self, request_id: str) -> tuple[str, TokenFrame | None]:
        """Returns the id of the last entry, "" of an empty log, and the newest frame.

        The frame is None when only fences stand at the end. Raises: redis.RedisError.
        """
        entries: Any = await self._store.xrevrange(log_key(request_id), count=_LAST_ENTRIES)
        for _, fields in entries:
            for name, value in fields.items():
                if name != b"x" and isinstance(frame := next(decode_all(value)), TokenFrame):
                    return entries[0][0].decode(), frame
        return entries[0][0].decode() if entries else "", None

    async def fence(self, request_id: str) -> tuple[int | None, int]:
        """Shuts the present producer out. Returns the epoch to go on with and the tokens logged.

        The epoch is None when the stream has ended. Raises: redis.RedisError.
        """
        verdict, epoch = await self._shut_out(request_id, _ANY_ENTRY)
        return (None, 0) if verdict == _ENDED else (epoch, await self._tokens(request_id))

    async def fence_lost(self, lost: Lost, *, if_last: str = _ANY_ENTRY) -> int | None:
        """Shuts the present producer out and says in the log which life was lost.

        Returns the epoch to go on with; None when the stream has ended, or its last entry is not
        `if_last`. Raises: redis.RedisError.
        """
        verdict, epoch = await self._shut_out(lost.request_id, if_last, encode_mark(lost))
        return epoch if verdict == _FENCED else None

    async def end_with_error(
        self, request_id: str, *, instance: str, error: StreamError, if_last: str = _ANY_ENTRY
    ) -> bool:
        """Ends a stream whose producer is gone: fences it out, then appends the error as the last
        frame.

        The web process that is routed gets it over its channel. Does nothing when the stream has
        ended. `if_last`: id of the log's last entry as `newest` has returned it; with another one
        there nothing is done and False is returned. Raises: redis.RedisError.
        """
        verdict, epoch = await self._shut_out(request_id, if_last)
        if verdict != _FENCED:
            return verdict == _ENDED
        start = await self._tokens(request_id)
        frame = TokenFrame(request_id, epoch, start, (), instance, error=error)
        await self._append(
            keys=[log_key(request_id), route_key(request_id)],
            args=[self.times.live_s, self.times.ended_s, frame.entry_id, encode(frame), "e"],
        )
        return True

    async def _shut_out(self, request_id: str, if_last: str, says: bytes = b"") -> tuple[int, int]:
        verdict, epoch = await self._fence(
            keys=[log_key(request_id)], args=[self.times.live_s, FENCE_EPOCHS, if_last, says]
        )
        return int(verdict), int(epoch)

    async def _tokens(self, request_id: str) -> int:
        """Returns how many tokens a log holds whose producer is shut out."""
        start, after = 0, None
        while True:
            frames, after = await self.read_after(request_id, after_entry=after)
            start = frames[-1].end if frames else start
            if after is None:
                return start
