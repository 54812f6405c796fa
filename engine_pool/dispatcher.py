"""Sends requests to engines: chooses, opens the logs, calls, tries elsewhere when one refuses.

The choice is the policy's (chooser.py), on the live view with the ledger. Before the call the logs
are opened (without a route the store refuses a producer's frames) and all web processes are told
what is on its way. A try that was refused is repeated elsewhere; one whose outcome is unknown is
first fenced out of the log, so that two engines never write one stream.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import redis
import redis.asyncio

from engine_pool import view
from engine_pool.aborts import Aborts
from engine_pool.chooser import Chooser, Place, Wanted
from engine_pool.config import PoolConfig
from engine_pool.errors import (
    EngineRefused,
    InstanceLost,
    NoInstance,
    PoolError,
    RequestFatal,
    RequestTooLarge,
    StoreUnavailable,
)
from engine_pool.gateway_queue import GatewayQueue
from engine_pool.holding import Holding
from engine_pool.live_view import LiveView
from engine_pool.outbox import EngineGate, Outbox
from engine_pool.replay_rules import FATAL_LIVES
from engine_pool.stream import Stream
from engine_pool.submission import Sent, Submission
from engine_pool.token_log import UNBILLED, TokenFrame, TokenLogReader, request_key, route_key
from engine_pool.token_reader import TokenReader
from engine_pool.types import InstanceName, InstanceStatus
from engine_pool.whereabouts import is_alive, other_place

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 3
"""Instances that a request is offered to: enough for a race or a crash, too few to hide a fault."""
STORE_TIMEOUT_S: Final = 5.0
"""For the one round trip before a request is sent: a millisecond, but a burst of hundreds of
requests keeps this process from its sockets for a second or two, which is no dead store."""


class Dispatcher:
    """One a web process."""

    def __init__(
        self,
        live: LiveView,
        reader: TokenReader,
        log: TokenLogReader,
        store: "redis.asyncio.Redis[bytes]",
        gate: EngineGate,
        config: PoolConfig,
    ) -> None:
        self._live = live
        self._reader = reader
        self._log = log
        self._store = store
        self._gate = gate
        self._chooser = Chooser(live, store, config)
        self._outboxes: dict[str, Outbox] = {}
        self._aborts = Aborts(live, reader, lambda actor, ids: self._outbox(actor).abort(ids))

    async def submit(self, submission: Submission) -> Sent:
        """Sends requests to the instance that suits them best, and opens their streams.

        Raises: NoInstance, StoreUnavailable, EngineRefused, InstanceLost, RequestFatal; no stream
        is open then.
        """
        wanted = self._chooser.wanted(submission)
        waits_s = time.monotonic()
        place = await self._chooser.first_place(wanted)
        waited_s = time.monotonic() - waits_s
        streams = [Stream(i, submission.unread, order=submission.alone(i)) for i in submission.ids]
        try:
            for stream in streams:
                self._reader.open(stream)
            place = await self._try_instances(wanted, place, streams)
            return Sent(place.status.instance, place.reason, waited_s)
        except PoolError as error:
            for stream in streams:
                self._reader.close(stream.request_id)
            if not isinstance(error, StoreUnavailable):
                await self._forget(submission)
            raise

    async def resume(self, stream: Stream, sent_to: tuple[str, str]) -> None:
        """Opens the stream of a request that was sent before, wherever the request is by now.

        `sent_to`: instance and incarnation that the record names; where they are not alive or have
        it no more, the stream's frames and other_place tell more.
        Raises: StreamGone, StoreUnavailable, redis.RedisError.
        """
        instance, stream.incarnation = InstanceName(sent_to[0]), sent_to[1]
        status = self._live.statuses.get(instance)
        stream.instance = stream.producer = instance
        stream.actor = status.actor if status and is_alive(status, stream.incarnation) else ""
        if place := other_place(self._live, stream):
            stream.place_at(place.instance, place)
        await self._reader.resume(stream)

    async def send_again(
        self, submission: Submission, excluded: Collection[InstanceName]
    ) -> tuple[InstanceStatus, PoolError | None]:
        """As in replays.Sender."""
        wanted = self._chooser.wanted(submission)
        place = self._chooser.place(wanted, excluded)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._store.publish(self._live.keys.fleet, view.encode_sent(place.sent))
            refusals = await self._outbox(place.status.actor).submit(submission.requests)
        except (redis.RedisError, OSError, TimeoutError) as error:
            self._chooser.give_back(wanted, place)
            raise StoreUnavailable("The store does not answer; try again soon.") from error
        except InstanceLost as error:
            self._chooser.give_back(wanted, place)
            return place.status, error
        if refusals:
            self._chooser.give_back(wanted, place)
            return place.status, EngineRefused(next(iter(refusals.values())))
        return place.status, None

    def abort(self, request_ids: Sequence[str]) -> None:
        """Ends those of the requests whose streams are open here, at their engines too; also one
        that moves away at that moment."""
        self._aborts.abort(request_ids)

    def use(self, config: PoolConfig) -> None:
        """Goes on with these settings (Chooser.use)."""
        self._chooser.use(config)

    def abort_anywhere(self, request_id: str, sent_to: str) -> None:
        """Ends a request, whichever web process reads it (Aborts.abort_anywhere)."""
        self._aborts.abort_anywhere(request_id, InstanceName(sent_to))

    async def close(self) -> None:
        """Sends what waits in the outboxes."""
        await self._chooser.holding.close()
        await asyncio.gather(*(outbox.close() for outbox in self._outboxes.values()))

    def give_up_waiting(self, error: PoolError) -> None:
        """Ends the wait of all requests that have no instance yet."""
        self._chooser.give_up(error)

    @property
    def holding(self) -> Holding:
        """Requests that wait for the first instance of a pool at zero."""
        return self._chooser.holding

    @property
    def queue(self) -> GatewayQueue:
        """Of requests that wait in this web process for room; empty without late binding."""
        return self._chooser.queue

    def note_frames(self, frames: Sequence[TokenFrame]) -> None:
        """Learns from the tokens of own requests what their instances had of the prompts."""
        self._chooser.prefixes.note_frames(frames)

    async def _try_instances(
        self, wanted: Wanted, place: Place, streams: Sequence[Stream]
    ) -> Place:
        """Offers a submission to the place and, where it is not taken, to others; returns who took
        it."""
        submission = wanted.submission
        excluded: set[InstanceName] = set()
        deaths = 0
        while True:
            for stream in streams:
                stream.send_to(place.status)
                stream.is_being_sent = True
            await self._announce(submission, place)
            failure = await self._offer(submission, place.status)
            if failure is None:
                for stream in streams:
                    stream.is_being_sent = False
                return place
            deaths += isinstance(failure, InstanceLost) and not self._is_alive(place.status)
            if deaths == FATAL_LIVES:
                raise RequestFatal(
                    "Engines died with this request, one after another, as they took it."
                    " It is not tried again: it may be what ends them."
                )
            instance = place.status.instance
            self._chooser.give_back(wanted, place)
            excluded.add(instance)
            logger.warning("%s: not taken by %s: %s", submission.record, instance, failure)
            if len(excluded) == TRIES_MAX:
                raise failure
            try:
                place = self._chooser.place(wanted, excluded)
            except (NoInstance, RequestTooLarge):
                # What the others said tells more than that nobody is left.
                raise failure from None

    def _is_alive(self, status: InstanceStatus) -> bool:
        return is_alive(self._live.statuses.get(status.instance), status.incarnation)

    async def _announce(self, submission: Submission, to: Place) -> None:
        """Opens the logs, writes the record, tells the ledger: one round trip for all three."""
        place = f"{to.status.instance} {to.status.incarnation}".encode()
        key = request_key(submission.record)
        pipe = self._store.pipeline(transaction=False)
        self._log.open_in(pipe, submission.ids, self._reader.channel)
        places = {f"at:{i}": place for i in submission.ids}
        pipe.hset(key, mapping={**submission.fields, **places})
        pipe.expire(key, self._log.times.live_s)
        now_s = time.time()
        pipe.zadd(UNBILLED, {submission.record: now_s})
        # What is older has neither log nor record any more.
        pipe.zremrangebyscore(UNBILLED, "-inf", now_s - 2 * self._log.times.live_s)
        pipe.publish(self._live.keys.fleet, view.encode_sent(to.sent))
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await pipe.execute()
        except (redis.RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable("The store does not answer; try again soon.") from error

    async def _forget(self, submission: Submission) -> None:
        """Removes what `_announce` has written for a request that nobody took."""
        keys = [request_key(submission.record), *map(route_key, submission.ids)]
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                pipe = self._store.pipeline(transaction=False)
                pipe.unlink(*keys)
                pipe.zrem(UNBILLED, submission.record)
                await pipe.execute()
        except (redis.RedisError, OSError, TimeoutError):
            # They go by themselves, later.
            logger.info("%s: left in the store", submission.record)

    async def _offer(self, submission: Submission, status: InstanceStatus) -> PoolError | None:
        """Returns None when the instance took all, else why it did not; it has none of them then.

        Raises: PoolError when a stream has begun already, so that no other instance can take it.
        """
        outbox = self._outbox(status.actor)
        try:
            refusals = await outbox.submit(submission.requests)
        except InstanceLost as error:
            await self._fence(submission, error)
            return error
        if not refusals:
            return None
        refusal = EngineRefused(next(iter(refusals.values())))
        if accepted := [i for i in submission.ids if i not in refusals]:
            outbox.abort(accepted)
            await self._fence(submission, refusal)
        return refusal

    async def _fence(self, submission: Submission, failure: PoolError) -> None:
        """Shuts out a producer that may still come. Raises: `failure` when it has come already."""
        for index, request in enumerate(submission.requests):
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    epoch, tokens = await self._log.fence(request.request_id)
            except (redis.RedisError, OSError, TimeoutError) as error:
                raise StoreUnavailable("The store does not answer; try again soon.") from error
            if epoch is None or tokens:
                raise failure
            submission.requests[index] = replace(request, epoch=epoch)

    def _outbox(self, actor: str) -> Outbox:
        if actor not in self._outboxes:
            known = {s.actor for s in self._live.statuses.values()}
            for gone in [a for a, o in self._outboxes.items() if a not in known and o.is_idle]:
                del self._outboxes[gone]
            self._outboxes[actor] = Outbox(self._gate, actor)
        return self._outboxes[actor]
