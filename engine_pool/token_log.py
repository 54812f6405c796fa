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
    """Set in a last frame only: the request failed."""
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
    def entry_id(self) -> str:
        # A last frame may bring no token; its id must still be above its predecessor's.
        return f"{self.epoch}-{self.start + max(1, len(self.token_ids))}"


class Superseded(msgspec.Struct, array_like=True, frozen=True, tag="s"):
    """Tells a web process that another reader took this request's stream."""

    request_id: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TokenFrame | Superseded)


def encode(message: TokenFrame | Superseded) -> bytes:
    """Returns the message as length-prefixed msgpack."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_all(blob: bytes) -> Iterator[TokenFrame | Superseded]:
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


# KEYS: log, route of each request. ARGV: live_s, ended_s, then entry id, frame, kind of each
# request (kind: "" in the middle, "s" the first frame, "e" the last, "b" both).
# Returns {indices refused, indices that no web process heard}, counted from 1.
_APPEND = """
local refused, unheard, channels, members, parts = {}, {}, {}, {}, {}
for i = 1, #KEYS / 2 do
  local log, route, a = KEYS[2 * i - 1], KEYS[2 * i], 3 * i
  local channel = redis.call('GET', route)
  local entry = false
  local kind = ARGV[a + 2]
  local last = kind == 'e' or kind == 'b'
  if channel then entry = redis.pcall('XADD', log, ARGV[a], last and 'e' or 'f', ARGV[a + 1]) end
  if type(entry) ~= 'string' then
    refused[#refused + 1] = i
  else
    if last then
      redis.call('EXPIRE', log, ARGV[2])
      redis.call('EXPIRE', route, ARGV[2])
    elseif kind == 's' then
      redis.call('EXPIRE', log, ARGV[1])
    end
    if not parts[channel] then
      channels[#channels + 1] = channel
      parts[channel], members[channel] = {}, {}
    end
    local p = parts[channel]
    p[#p + 1] = ARGV[a + 1]
    local m = members[channel]
    m[#m + 1] = i
  end
end
for _, channel in ipairs(channels) do
  if redis.call('PUBLISH', channel, table.concat(parts[channel])) == 0 then
    for _, i in ipairs(members[channel]) do unheard[#unheard + 1] = i end
  end
end
return {refused, unheard}
"""

# KEYS: route. ARGV: channel of the new reader, the encoded Superseded. Returns the old channel, or
# nil.
_ATTACH = """
local old = redis.call('GET', KEYS[1])
if not old then return nil end
redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL')
if old ~= ARGV[1] then redis.call('PUBLISH', old, ARGV[2]) end
return old
"""

FENCE_EPOCHS: Final = 1000
"""By how much a fence raises the epoch. A move raises it by one or two without a trace in the log
until its destination appends, and a queued request may move several times: all those producers are
to be shut out."""

# KEYS: log. ARGV: live_s, FENCE_EPOCHS, id that the last entry must have ("": none, "*": any).
# Shuts out the present producer. Returns {0, epoch to go on with}, {1, 0} when the stream has
# ended, {2, 0} when the last entry is another.
_FENCE = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
-- An empty log has a producer too, whose epoch is 1: it may be about to append.
local epoch, id = 1, ''
if last[1] then
  if last[1][2][1] == 'e' then return {1, 0} end
  id = last[1][1]
  epoch = tonumber(string.match(id, '^(%d+)-'))
end
if ARGV[3] ~= '*' and ARGV[3] ~= id then return {2, 0} end
epoch = epoch + tonumber(ARGV[2])
redis.call('XADD', KEYS[1], string.format('%d-0', epoch), 'x', '')
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {0, epoch}
"""


# KEYS: log. ARGV: the caller's epoch, live_s. Returns the epoch in which the caller may go on, 0
# when somebody else has appended or fenced meanwhile. It jumps by two: the next one is the other
# side's, which may append later. An empty log is a queued request's. The mark `r` is for a second
# try after an answer that was lost.
_RECLAIM = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local mine = tonumber(ARGV[1])
if last[1] then
  if last[1][2][1] == 'e' then return 0 end
  local epoch = tonumber(string.match(last[1][1], '^(%d+)-'))
  if last[1][2][2] == 'r' and epoch == mine + 2 then return mine + 2 end
  if epoch > mine then return 0 end
end
redis.call('XADD', KEYS[1], string.format('%d-0', mine + 2), 'x', 'r')
redis.call('EXPIRE', KEYS[1], ARGV[2])
return mine + 2
"""


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
        self._append = store.register_script(_APPEND)
        self._reclaim = store.register_script(_RECLAIM)

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
            keys += (log_key(frame.request_id), route_key(frame.request_id))
            args += (frame.entry_id, encode(frame), kind)
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
        self._attach = store.register_script(_ATTACH)
        self._fence = store.register_script(_FENCE)
        self._append = store.register_script(_APPEND)

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
        low = "-" if after_entry is None else f"({after_entry}"
        entries: Any = await self._store.xrange(log_key(request_id), low, "+", count=count)
        frames: list[TokenFrame] = []
        for _, fields in entries:
            for name, value in fields.items():
                if name != b"x":
                    frames += (m for m in decode_all(value) if isinstance(m, TokenFrame))
        return frames, entries[-1][0].decode() if entries else None

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

    async def _shut_out(self, request_id: str, if_last: str) -> tuple[int, int]:
        verdict, epoch = await self._fence(
            keys=[log_key(request_id)], args=[self.times.live_s, FENCE_EPOCHS, if_last]
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
