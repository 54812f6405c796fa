"""Reads the tokens of this web process's requests: one subscription for all, the log for the rest.

The channel is fast and forgets; the log is slower and remembers. A stream is live while each frame
begins where the one before ended. It is behind when a frame is missing (lost message, store away
for a moment), when its consumer reads too slowly, or when it has just been resumed: then live
frames are dropped and the log is read in pages, at the consumer's pace, until nothing is left. So a
slow consumer costs a bounded buffer.

A request that moves goes on in the next epoch, from another instance, right after the last token of
the one before: its stream sees neither gap nor repeat, takes the new place and tells its sink of
the visit before the first frame from there.

A request whose engine was lost goes on so too, and the log says before its first frame from
elsewhere which life was lost (log_marks.py).

Ends without a result are typed (errors.py): the store lost its memory or stays away, another
process took the stream over. A dead instance is loss_watch.py's business.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import redis
import redis.asyncio

from engine_pool import view
from engine_pool.errors import (
    PoolError,
    ServerStopping,
    StoreUnavailable,
    StreamGone,
    StreamSuperseded,
)
from engine_pool.log_marks import Lost
from engine_pool.store import ASYNC_TIMEOUT_S
from engine_pool.stream import FrameSink, Stream, Visit, position
from engine_pool.token_log import (
    Superseded,
    TokenFrame,
    TokenLogReader,
    decode_all,
    token_channel,
)
from engine_pool.types import InstanceName, InstanceStatus

logger = logging.getLogger(__name__)

UNREAD_MAX: Final = 256
"""Unread outputs of a request above which its live frames are dropped: seconds of text."""
UNREAD_LOW: Final = 64
"""Unread outputs at which a stream that is behind reads on: not 0, so it does not stutter."""
PAGE_FRAMES: Final = 128
"""Frames of one read of the log; with UNREAD_LOW it stays below UNREAD_MAX."""
RECONNECT_EVERY_S: Final = 0.1
"""A local store restarts in less than a second; twice its patience is not needed."""
LISTEN_TIMEOUT_S: Final = 1.0
"""Silence on the channel after which the connection is tried."""

_Arrived = tuple[TokenFrame, Visit | None]
"""A frame, and the visit that begins with it."""


class TokenReader:
    """One a web process; `run` is the caller's task, ended by cancelling it."""

    def __init__(
        self,
        store: "redis.asyncio.Redis[bytes]",
        log: TokenLogReader,
        sink: FrameSink,
        *,
        web_process: str,
        store_timeout_s: float,
        status_of: Callable[[InstanceName], InstanceStatus | None] = lambda instance: None,
    ) -> None:
        """`status_of`: what is known of an instance, to find its actor when a request moves."""
        self._store = store
        self._log = log
        self._sink = sink
        self._store_timeout_s = store_timeout_s
        self._status_of = status_of
        self.channel = token_channel(web_process)
        self.is_connected = False
        self.on_stray: Callable[[TokenFrame], None] = lambda frame: None
        """Gets each live frame of a request that has no stream here (any more)."""
        self.on_leaving: Callable[[Stream, Lost], None] = lambda stream, lost: None
        """Hears of each stream whose living engine sends it elsewhere."""
        self._incarnation: str | None = None
        self._streams: dict[str, Stream] = {}
        self._catching_up: dict[str, asyncio.Task[None]] = {}

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that are open now; a copy, so that the caller may end some."""
        return tuple(self._streams.values())

    def streams_of(self, request_ids: Sequence[str]) -> list[Stream]:
        """Returns the open ones among these."""
        return [s for i in request_ids if (s := self._streams.get(i))]

    def open(self, stream: Stream) -> None:
        """Expects a new request's frames. Raises: StoreUnavailable when none could arrive."""
        if not self.is_connected:
            raise StoreUnavailable("The store does not answer, so no request can be taken now.")
        assert stream.request_id not in self._streams, "request ids are unique"
        self._streams[stream.request_id] = stream

    async def resume(self, stream: Stream) -> None:
        """Takes a stream over from whoever reads it and delivers it from its first token on.

        Raises: StreamGone when the store does not have it; StoreUnavailable; redis.RedisError.
        """
        self.supersede(stream.request_id)
        self.open(stream)
        # Held before the route changes: what comes live meanwhile is dropped and read from the log.
        stream.is_behind = True
        try:
            known = await self._log.attach(stream.request_id, self.channel)
        except BaseException:
            self.close(stream.request_id)
            raise
        if known is None:
            self.close(stream.request_id)
            raise StreamGone("This stream is not, or no longer, in the store.")
        self._catch_up(stream)

    def supersede(self, request_id: str) -> None:
        """Ends a stream of this process that is about to be resumed in it."""
        self._end(request_id, _superseded())

    def close(self, request_id: str) -> bool:
        """Forgets a stream; its frames are ignored from now on. Says whether it was open."""
        if task := self._catching_up.pop(request_id, None):
            task.cancel()
        return self._streams.pop(request_id, None) is not None

    def note_room(self, request_id: str) -> None:
        """Says that the consumer of a stream has taken outputs; cheap, called often."""
        stream = self._streams.get(request_id)
        if stream is not None and stream.is_behind and stream.unread() <= UNREAD_LOW:
            stream.room.set()

    def reread(self, request_id: str) -> None:
        """Looks into the log for what the channel may not have brought."""
        stream = self._streams.get(request_id)
        if stream is not None and not stream.is_behind:
            self._catch_up(stream)

    def let_go(self) -> None:
        """Ends all streams here because this process stops; their engines go on for a while."""
        self._fail_all(
            ServerStopping("This server is stopping; resume the stream with its last event's id.")
        )

    def fail(self, stream: Stream, error: PoolError) -> None:
        """Ends a stream here with an error, unless it has ended."""
        if self._streams.get(stream.request_id) is stream:
            self._end(stream.request_id, error)

    def fail_all(self, error: PoolError) -> None:
        """Ends all streams here with an error."""
        self._fail_all(error)

    async def run(self) -> None:
        """Reads for ever; survives the store's absences and ends the streams that do not."""
        try:
            while True:
                try:
                    await self._follow()
                except (redis.RedisError, OSError, TimeoutError) as error:
                    logger.warning("token channel: %s", error or type(error).__name__)
                self.is_connected = False
                await self._await_store()
        except asyncio.CancelledError:
            self.let_go()
            raise
        except BaseException as error:
            # A reader that dies silently would leave every client waiting for ever.
            self.is_connected = False
            self._fail_all(PoolError(f"The token reader failed: {type(error).__name__}."))
            raise

    async def _follow(self) -> None:
        async with self._store.pubsub(ignore_subscribe_messages=True) as channel:
            async with asyncio.timeout(ASYNC_TIMEOUT_S):
                await channel.subscribe(self.channel)
                incarnation = await view.store_incarnation(self._store)
            if self._incarnation not in (None, incarnation):
                self._fail_all(_memory_lost())
            self._incarnation = incarnation
            self.is_connected = True
            for stream in self.streams:
                self.reread(stream.request_id)
            while True:
                message = await channel.get_message(timeout=LISTEN_TIMEOUT_S)
                if message is not None:
                    self._receive(message["data"])
                    continue
                async with asyncio.timeout(ASYNC_TIMEOUT_S):
                    await self._store.ping()

    async def _await_store(self) -> None:
        """Returns when the store answers; ends the streams when that takes too long."""
        give_up_s = time.monotonic() + self._store_timeout_s
        while True:
            try:
                async with asyncio.timeout(ASYNC_TIMEOUT_S):
                    await self._store.ping()
                return
            except (redis.RedisError, OSError, TimeoutError):
                if time.monotonic() >= give_up_s:
                    self._fail_all(_store_away(self._store_timeout_s))
            await asyncio.sleep(RECONNECT_EVERY_S * random.uniform(0.7, 1.3))

    def _receive(self, blob: bytes) -> None:
        accepted: list[_Arrived] = []
        now_s = time.monotonic()
        try:
            for message in decode_all(blob):
                if isinstance(message, Superseded):
                    self._end(message.request_id, _superseded())
                elif isinstance(message, Lost):
                    if (stream := self._streams.get(message.request_id)) is not None:
                        self.on_leaving(stream, message)
                elif (arrived := self._accept_live(message, now_s)) is not None:
                    accepted.append(arrived)
        except (msgspec.DecodeError, ValueError) as error:
            # Its streams see a gap with their next frames, or loss_watch does, and read the log.
            logger.error("dropped a message of the token channel: %s", error)
        if accepted:
            self._hand_over(accepted)

    def _accept_live(self, frame: TokenFrame, now_s: float) -> _Arrived | None:
        stream = self._streams.get(frame.request_id)
        if stream is None:
            self.on_stray(frame)
            return None
        if frame.start < stream.end:
            return None
        if stream.is_behind or frame.start > stream.end or stream.unread() > UNREAD_MAX:
            stream.missed = max(stream.missed, position(frame))
            if not stream.is_behind:
                self._catch_up(stream)
            return None
        return self._advance(stream, frame, now_s)

    def _advance(self, stream: Stream, frame: TokenFrame, heard_s: float | None) -> _Arrived:
        visit = stream.advance(frame, heard_s)
        if visit is not None or not stream.instance:
            instance = InstanceName(frame.instance)
            stream.place_at(instance, self._status_of(instance))
        return frame, visit

    def _hand_over(self, arrived: Sequence[_Arrived]) -> None:
        batch: list[TokenFrame] = []
        for frame, visit in arrived:
            if frame.is_last:
                self.close(frame.request_id)
            if visit is not None:
                # After all that came before it, and before the first frame from there.
                if batch:
                    self._sink.deliver(batch)
                    batch = []
                self._sink.moved(frame.request_id, visit)
            batch.append(frame)
        if batch:
            self._sink.deliver(batch)

    def _end(self, request_id: str, error: PoolError) -> None:
        if self.close(request_id):
            self._sink.fail(request_id, error)

    def _fail_all(self, error: PoolError) -> None:
        for stream in self.streams:
            self._end(stream.request_id, error)

    def _catch_up(self, stream: Stream) -> None:
        stream.is_behind = True
        task = asyncio.create_task(self._read_log(stream), name=f"log of {stream.request_id}")
        self._catching_up[stream.request_id] = task
        task.add_done_callback(lambda done: self._caught_up(stream, done))

    def _caught_up(self, stream: Stream, task: asyncio.Task[None]) -> None:
        if self._catching_up.get(stream.request_id) is task:
            del self._catching_up[stream.request_id]
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, redis.RedisError | OSError | TimeoutError):
            # The channel breaks with it, and after the reconnection every stream reads its log.
            stream.is_behind = False
        elif isinstance(error, PoolError):
            self._end(stream.request_id, error)
        else:
            logger.error("reading the log of %s failed", stream.request_id, exc_info=error)
            self._end(stream.request_id, PoolError(f"Reading failed: {type(error).__name__}."))

    async def _read_log(self, stream: Stream) -> None:
        """Delivers the log's rest, page by page, and makes the stream live again."""
        while True:
            while stream.unread() > UNREAD_LOW:
                stream.room.clear()
                await stream.room.wait()
            # What was heard before the question must be in the answer; what comes now need not.
            missed = stream.missed
            entries, last_entry = await self._log.read_all_after(
                stream.request_id, after_entry=stream.at_entry, count=PAGE_FRAMES
            )
            if self._streams.get(stream.request_id) is not stream:
                return
            if last_entry is None:
                if missed > stream.at:
                    raise StreamGone("The store has forgotten this stream; it cannot go on.")
                if stream.missed > stream.at:
                    continue
                stream.is_behind = False
                return
            arrived = []
            for entry in entries:
                if not isinstance(entry, TokenFrame):
                    stream.note_lost(entry)
                    continue
                if entry.start != stream.end:
                    raise StreamGone("The log of this stream has a gap; it cannot go on.")
                arrived.append(self._advance(stream, entry, None))
            epoch, _, tokens = last_entry.partition("-")
            stream.at = (int(epoch), int(tokens))
            if arrived:
                self._hand_over(arrived)
            # Lets consumers run; a long log must not hold the event loop.
            await asyncio.sleep(0)


def _superseded() -> StreamSuperseded:
    return StreamSuperseded("Another connection resumed this stream, so this one ends.")


def _memory_lost() -> StoreUnavailable:
    return StoreUnavailable(
        "The store lost its memory. This stream cannot be resumed: send it again."
    )


def _store_away(for_s: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store has not answered for {for_s:g} s. This stream cannot be resumed: send it again."
    )
