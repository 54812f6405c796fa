"""Sends requests to engines: chooses, opens the logs, calls, tries elsewhere when one refuses.

The choice is `policy.dispatch` on the live view with the ledger. Before the call the logs are
opened (without a route the store refuses a producer's frames) and all web processes are told what
is on its way. A try that was refused is repeated elsewhere; one whose outcome is unknown is first
fenced out of the log, so that two engines never write one stream.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import redis
import redis.asyncio

from engine_pool import view
from engine_pool.aborts import Aborts
from engine_pool.errors import (
    EngineRefused,
    InstanceLost,
    NoInstance,
    PoolError,
    RequestTooLarge,
    StoreUnavailable,
)
from engine_pool.live_view import LiveView
from engine_pool.outbox import EngineGate, Outbox
from engine_pool.policy.dispatch import Refusal, RequestDemand, choose
from engine_pool.policy.reports import pool_standings, why_nobody
from engine_pool.policy.settings import DispatchRule
from engine_pool.ports import EngineRequest
from engine_pool.stream import Stream
from engine_pool.token_log import TokenLogReader, request_key, route_key
from engine_pool.token_reader import TokenReader
from engine_pool.types import InFlight, InstanceName, InstanceStatus
from engine_pool.whereabouts import is_alive, other_place

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 3
"""Instances that a request is offered to: enough for a race or a crash, too few to hide a fault."""
STORE_TIMEOUT_S: Final = 5.0
"""For the one round trip before a request is sent: a millisecond, but a burst of hundreds of
requests keeps this process from its sockets for a second or two, which is no dead store."""


@dataclass(slots=True)
class Submission:
    """Engine requests that belong together (the choices of one), on their way to one instance."""

    requests: list[EngineRequest]
    unread: Callable[[], int]
    """Outputs that their consumer has not taken yet."""
    record: str
    """Id of the record from which another web process can resume them."""
    fields: Mapping[str, bytes]
    """What to write into the record; the instance of each request is added."""

    @property
    def demand_tokens(self) -> int:
        """KV tokens that the prefill needs: the choices of one prompt share its blocks."""
        return max(r.prompt_tokens for r in self.requests) + len(self.requests)

    @property
    def ids(self) -> list[str]:
        return [r.request_id for r in self.requests]


@dataclass(frozen=True, slots=True)
class Sent:
    """Where requests went, and why there."""

    instance: InstanceName
    reason: str


class Dispatcher:
    """One a web process."""

    def __init__(
        self,
        live: LiveView,
        reader: TokenReader,
        log: TokenLogReader,
        store: "redis.asyncio.Redis[bytes]",
        gate: EngineGate,
    ) -> None:
        self._live = live
        self._reader = reader
        self._log = log
        self._store = store
        self._gate = gate
        self._rule = DispatchRule()
        self._outboxes: dict[str, Outbox] = {}
        self._aborts = Aborts(live, reader, lambda actor, ids: self._outbox(actor).abort(ids))

    async def submit(self, submission: Submission) -> Sent:
        """Sends requests to the instance that suits them best, and opens their streams.

        Raises: NoInstance, StoreUnavailable, EngineRefused, InstanceLost; no stream is open then.
        """
        streams = [Stream(i, submission.unread) for i in submission.ids]
        try:
            for stream in streams:
                self._reader.open(stream)
            return await self._try_instances(submission, streams)
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

    def abort(self, request_ids: Sequence[str]) -> None:
        """Ends those of the requests whose streams are open here, at their engines too; also one
        that moves away at that moment."""
        self._aborts.abort(request_ids)

    async def close(self) -> None:
        """Sends what waits in the outboxes."""
        await asyncio.gather(*(outbox.close() for outbox in self._outboxes.values()))

    async def _try_instances(self, submission: Submission, streams: Sequence[Stream]) -> Sent:
        excluded: set[InstanceName] = set()
        failure: PoolError | None = None
        for _ in range(TRIES_MAX):
            now_unix_s = time.time()
            try:
                status, reason = self._choose(submission, excluded, now_unix_s)
            except NoInstance as nobody:
                # What the others said tells more than that nobody is left.
                raise failure or nobody from None
            for stream in streams:
                stream.send_to(status)
            await self._announce(submission, status, now_unix_s)
            refused = await self._offer(submission, status)
            if refused is None:
                return Sent(status.instance, reason)
            failure = refused
            excluded.add(status.instance)
            for request_id in submission.ids:
                self._live.note_refused(request_id)
            logger.warning("%s: not taken by %s: %s", submission.record, status.instance, failure)
        assert failure is not None, "each try returned, raised or failed"
        raise failure

    def _choose(
        self, submission: Submission, excluded: set[InstanceName], now_unix_s: float
    ) -> tuple[InstanceStatus, str]:
        """Returns an instance and why. Raises: NoInstance; EngineRefused when none could ever."""
        pool = self._live.pool_view(now_unix_s)
        if excluded:
            statuses = tuple(s for s in pool.statuses if s.instance not in excluded)
            pool = replace(pool, statuses=statuses)
        first = submission.requests[0]
        demand = RequestDemand(first.request_id, submission.demand_tokens, first.priority_class)
        choice = choose(pool_standings(pool, now_unix_s), demand, self._rule)
        if isinstance(choice, Refusal):
            if choice.is_permanent:
                raise RequestTooLarge(f"No instance can take this request: {choice.why}.")
            why = why_nobody(pool, now_unix_s)
            raise NoInstance(f"No instance takes requests now: {why}.")
        return self._live.statuses[choice.instance], choice.reason

    async def _announce(
        self, submission: Submission, status: InstanceStatus, now_unix_s: float
    ) -> None:
        """Opens the logs, writes the record, tells the ledger: one round trip for all three."""
        sent = [
            InFlight(
                r.request_id, status.instance, r.priority_class, r.prompt_tokens + 1, now_unix_s
            )
            for r in submission.requests
        ]
        self._live.note_sent(sent)
        place = f"{status.instance} {status.incarnation}".encode()
        key = request_key(submission.record)
        pipe = self._store.pipeline(transaction=False)
        self._log.open_in(pipe, submission.ids, self._reader.channel)
        places = {f"at:{i}": place for i in submission.ids}
        pipe.hset(key, mapping={**submission.fields, **places})
        pipe.expire(key, self._log.times.live_s)
        pipe.publish(view.FLEET_CHANNEL, view.encode_sent(sent))
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
                await self._store.unlink(*keys)
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
