"""Finds places for requests and enters them into the ledger at once, so that the next choice counts
them: at once, or with late binding when an instance has room.

What is cached of a prompt, and where, is asked anew for each choice. Sends nothing
(dispatcher.py).
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine_pool.class_rules import ageing_of_rank
from engine_pool.config import PoolConfig
from engine_pool.errors import NoInstance, PoolError, RequestTooLarge
from engine_pool.gateway_queue import GatewayQueue
from engine_pool.holding import Holding
from engine_pool.live_view import LiveView
from engine_pool.placement import Placement
from engine_pool.policy.dispatch import Choice, Refusal, RequestDemand
from engine_pool.policy.reports import why_nobody
from engine_pool.prefixes import Prefixes
from engine_pool.submission import Submission
from engine_pool.types import InFlight, InstanceName, InstanceStatus
from engine_pool.waiting_line import Wish

if TYPE_CHECKING:
    import redis.asyncio


@dataclass(frozen=True, slots=True)
class Wanted:
    """A submission with what choices need of it."""

    submission: Submission
    hashes: tuple[int, ...]
    """Of its prompt's beginnings."""
    demand: RequestDemand
    """Without what is cached."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a submission goes."""

    status: InstanceStatus
    reason: str
    sent: tuple[InFlight, ...]
    """What stands in the ledger for it; other web processes are to be told."""


class Chooser:
    """Of one web process, in its event loop."""

    def __init__(
        self, live: LiveView, store: "redis.asyncio.Redis[bytes]", config: PoolConfig
    ) -> None:
        rule = config.policy.dispatch
        self._live = live
        self._fair_output_tokens = config.fair_output_tokens
        self._placement = Placement(live, rule)
        self.prefixes = Prefixes(live)
        of_rank = ageing_of_rank(config.classes)
        self.queue = GatewayQueue(self._placement, rule, config.ageing_s, of_rank)
        """Empty without late binding."""
        self._is_late_binding = rule.is_late_binding
        self.holding = Holding(live, store, config, self._is_served)
        """Those who came while nobody served."""

    def use(self, config: PoolConfig) -> None:
        """Chooses by these settings from now on. Late binding stays as it was at the start."""
        rule = config.policy.dispatch
        self._fair_output_tokens = config.fair_output_tokens
        self._placement.use(rule)
        self.queue.use(rule, config.ageing_s, ageing_of_rank(config.classes))
        self.holding.use(config)

    def give_up(self, error: PoolError) -> None:
        """Ends the wait of all requests that have no place yet."""
        self.queue.give_up(error)
        self.holding.give_up(error)

    def wanted(self, submission: Submission) -> Wanted:
        """Works out once what every choice for a submission needs."""
        first = submission.requests[0]
        tokens = sum(submission.demands(self._placement.block_size_tokens))
        demand = RequestDemand(first.request_id, tokens, first.priority_class)
        return Wanted(submission, self.prefixes.hashes_of(submission), demand)

    async def first_place(self, wanted: Wanted) -> Place:
        """Returns a place: with late binding once there is room, and of a pool at zero once an
        instance serves. Raises: as `place` and Holding.place."""
        priority_class = wanted.demand.priority_class
        return await self.holding.place(priority_class, lambda: self._first_place(wanted))

    async def _first_place(self, wanted: Wanted) -> Place:
        if not self._is_late_binding:
            return self.place(wanted)
        now_unix_s = time.time()
        choice = self._placement.choose(wanted.demand, now_unix_s)
        if isinstance(choice, Refusal) and choice.is_permanent:
            raise _too_large(choice)
        found: list[Place] = []
        first = wanted.submission.requests[0]
        wish = Wish(
            demand=wanted.demand,
            tenant=first.tenant,
            weight=first.weight,
            cost_tokens=first.prompt_tokens + min(first.max_tokens, self._fair_output_tokens),
            refresh=lambda demand: self._with_cached(wanted),
            take=lambda choice: found.append(self._take(wanted, choice, time.time())),
            give_back=lambda: self.give_back(wanted, found[0]),
        )
        await self.queue.place(wish)
        return found[0]

    def place(self, wanted: Wanted, excluded: Collection[InstanceName] = ()) -> Place:
        """Returns a place now, not at `excluded`. Raises: NoInstance; RequestTooLarge when no
        instance could ever take it."""
        now_unix_s = time.time()
        choice = self._placement.choose(self._with_cached(wanted), now_unix_s, excluded)
        if isinstance(choice, Refusal):
            if choice.is_permanent:
                raise _too_large(choice)
            pool = self._live.pool_view(now_unix_s)
            left = tuple(s for s in pool.statuses if s.instance not in excluded)
            why = why_nobody(replace(pool, statuses=left), now_unix_s)
            raise NoInstance(f"No instance takes requests now: {why}.")
        return self._take(wanted, choice, now_unix_s)

    def give_back(self, wanted: Wanted, place: Place) -> None:
        """Takes a submission out of the ledger that its instance did not take."""
        self.prefixes.withdraw(wanted.demand.request_id, place.status.instance)
        for entry in place.sent:
            self._live.note_refused(entry.request_id)

    def _is_served(self) -> bool:
        """Says whether an instance takes requests now, as far as fresh reports tell."""
        return any(s.is_open for s in self._placement.standings(time.time()))

    def _with_cached(self, wanted: Wanted) -> RequestDemand:
        if not wanted.hashes:
            return wanted.demand
        cached = self.prefixes.holders(
            wanted.hashes, wanted.submission.prompt_tokens, self._placement.block_size_tokens
        )
        return replace(wanted.demand, cached_tokens=cached)

    def _take(self, wanted: Wanted, choice: Choice, now_unix_s: float) -> Place:
        """Enters a submission into the ledger, with what it needs at the chosen instance."""
        instance, requests = choice.instance, wanted.submission.requests
        cached_tokens = self._with_cached(wanted).cached_tokens.get(instance, 0)
        self.prefixes.expect(requests[0].request_id, instance, wanted.hashes, cached_tokens)
        demands = wanted.submission.demands(self._placement.block_size_tokens, cached_tokens)
        sent = tuple(
            InFlight(r.request_id, instance, r.priority_class, tokens, now_unix_s)
            for r, tokens in zip(requests, demands, strict=True)
        )
        sent = (replace(sent[0], prefix=wanted.hashes), *sent[1:])
        self._live.note_sent(sent)
        return Place(self._live.statuses[instance], choice.reason, sent)


def _too_large(refusal: Refusal) -> RequestTooLarge:
    return RequestTooLarge(f"No instance can take this request: {refusal.why}.")
