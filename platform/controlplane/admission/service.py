"""Admission in one web process: reserves for new requests, looks after what they hold.

A request costs one round trip to the store, when it begins. Everything later goes in batches: one
task renews all leases and passes on what has ended, another one looks for leases that nobody renews
and for requests whose key has been taken away meanwhile.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

import redis
from django.db import DatabaseError

from controlplane.admission.leases import Asked, Change, Lease, Used
from controlplane.admission.sources import Sources
from controlplane.admission.store import ANSWER_TIMEOUT_S, AdmissionStore
from controlplane.admission.verdict import (
    BUDGET_UNKNOWN,
    DUPLICATE,
    PoolLimits,
    Standing,
    Verdict,
    cost_units,
    read_standing,
    read_verdict,
)
from controlplane.tenants.selectors import Limits
from engine_pool.errors import PoolError
from engine_pool.task_end import end_tasks

logger = logging.getLogger(__name__)

LEASE_MS: Final = 15_000
"""After so long without a word from its web process a request's places are free again."""
RENEW_EVERY_S: Final = 4.0
"""A lease outlives two renewals that fail."""
LOOK_EVERY_S: Final = 2.0
"""For expired leases and for keys that were taken away."""
RETRY_EVERY_S: Final = 0.5
BATCH: Final = 200
"""Changes of one call: about 5 ms of the store's time."""
WAITING_MAX: Final = 50_000
"""Changes kept while the store is away; what is dropped expires and is settled by its log."""
BUDGET_TRIES: Final = 3

STORE_ERRORS: Final = (redis.RedisError, OSError, TimeoutError)


class BudgetUnknown(Exception):
    """Neither the store nor the database says what a tenant has spent."""


class StoreAway(Exception):
    """The store does not answer, so nothing is admitted."""


class Admission:
    """One a web process; `start` begins its tasks, `stop` passes on what is left."""

    def __init__(self, store: AdmissionStore, sources: Sources) -> None:
        self._store = store
        self._sources = sources
        self.leases: dict[str, Lease] = {}
        self.taken_away: Callable[[str], Awaitable[PoolError | None]] | None = None
        """Says of a key's public id why its requests are to end; None: they are not."""
        self._waiting: deque[Change] = deque()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._loading: dict[tuple[int, str], asyncio.Future[None]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="budgets")

    def start(self) -> None:
        """Begins to look after leases. Safe to call again."""
        if not self._tasks:
            self._sources.start()
            self._tasks = [
                asyncio.create_task(_keep(self._pass_on), name="leases"),
                asyncio.create_task(_keep(self._look_after), name="lost leases"),
            ]

    async def stop(self) -> None:
        """Ends the tasks, passes on what waits, closes the connections."""
        await end_tasks(self._tasks)
        self._tasks = []
        while self._waiting and await self._flush(()):
            pass
        await self._store.aclose()
        self._thread.shutdown(wait=False)
        await asyncio.to_thread(self._sources.stop)

    async def reserve(self, asked: Asked) -> Verdict:
        """Takes a request or says which limit refuses it; a refused one has taken nothing.

        One round trip, unless the store has forgotten what the tenant has spent this month.
        Raises: StoreAway, BudgetUnknown.
        """
        self.start()
        pool = self._sources.pool_limits(asked.pool)
        units = self._cost_units(asked.model, asked.estimate.prompt_tokens, 0,
                                 asked.estimate.output_tokens)  # fmt: skip
        for _ in range(BUDGET_TRIES):
            try:
                numbers, month = await self._store.reserve(asked, pool, units, LEASE_MS)
            except STORE_ERRORS as error:
                self._add(Change("v", asked.request_id))
                raise StoreAway from error
            except asyncio.CancelledError:
                # Its client left; the store may have taken it all the same.
                self._add(Change("v", asked.request_id))
                raise
            if numbers[0] == DUPLICATE:
                raise StoreAway
            if numbers[0] != BUDGET_UNKNOWN:
                return read_verdict(numbers, asked.limits)
            await self._load_spent(asked.tenant_id, month)
        raise BudgetUnknown

    def pool_limits(self, pool: str) -> PoolLimits:
        """Returns a pool's own limits."""
        return self._sources.pool_limits(pool)

    async def look(self, tenant_id: int, limits: Limits) -> Standing:
        """Returns how full a tenant's limits are. Raises: STORE_ERRORS."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return read_standing(await self._store.look(tenant_id), limits)

    def hold(self, lease: Lease) -> None:
        """Begins to renew the lease of a request that was admitted."""
        self.start()
        self.leases[lease.request_id] = lease

    def take_over(self, lease: Lease) -> None:
        """Makes the lease of a request that is resumed here this process's."""
        self.hold(lease)
        self._add(Change("a", lease.request_id, LEASE_MS))

    def settle(self, lease: Lease) -> None:
        """Charges what a request has really used; its places are free."""
        if self._drop(lease):
            self._add(self._change("s", lease))

    def settle_by_log(self, lease: Lease) -> None:
        """Lets any process settle a request by what its log says: this one has not seen all."""
        if self._drop(lease):
            self._add(Change("d", lease.request_id))

    def give_up(self, lease: Lease) -> None:
        """Gives all back: no engine has taken the request."""
        if self._drop(lease):
            self._add(Change("v", lease.request_id))

    def let_go(self, lease: Lease, for_s: float) -> None:
        """Leaves a lease that nobody here renews any more: its request goes on for a while."""
        if self._drop(lease):
            self._add(self._change("d", lease, round(for_s * 1000)))

    def settle_left(self, lease: Lease) -> None:
        """Charges what a request that was let go has used until its end."""
        if lease.request_id not in self.leases:
            self._add(self._change("s", lease))

    def forget(self, lease: Lease) -> None:
        """Stops renewing: another connection has the request now."""
        self._drop(lease)

    def _drop(self, lease: Lease) -> bool:
        # The same request may be here twice: the older connection's lease is no longer in the dict.
        if self.leases.get(lease.request_id) is not lease:
            return False
        del self.leases[lease.request_id]
        return True

    def _add(self, change: Change) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
        self._waiting.append(change)
        self._wake.set()

    def _change(self, what: str, lease: Lease, ms: int = 0) -> Change:
        used: Used = lease.used
        if not used.is_accepted:
            return Change(what, lease.request_id, ms)
        prompt, cached, output = used.prompt_tokens, used.cached_tokens, used.output_tokens
        cost = self._cost_units(lease.model, prompt, cached, output)
        return Change(what, lease.request_id, ms, prompt, cached, prompt + output, cost)

    def _cost_units(self, model: str, prompt: int, cached: int, output: int) -> int:
        return cost_units(self._sources.price(model).cost(prompt, cached, output))

    async def _load_spent(self, tenant_id: int, month: str) -> None:
        """Tells the store what the database knows of a month. Raises: BudgetUnknown, StoreAway."""
        key = (tenant_id, month)
        pending = self._loading.get(key)
        if pending is None:
            pending = asyncio.ensure_future(self._load(tenant_id, month))
            self._loading[key] = pending
            pending.add_done_callback(lambda _: self._loading.pop(key, None))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await asyncio.shield(pending)
        except (DatabaseError, TimeoutError) as error:
            raise BudgetUnknown from error
        except STORE_ERRORS as error:
            raise StoreAway from error

    async def _load(self, tenant_id: int, month: str) -> None:
        at = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
        loop = asyncio.get_running_loop()
        spent = await loop.run_in_executor(self._thread, self._sources.month_cost, tenant_id, at)
        await self._store.set_spent(tenant_id, month, cost_units(spent))

    async def _pass_on(self) -> None:
        """Renews all leases in time, and passes on what has ended as soon as the store takes it."""
        due_s = time.monotonic() + RENEW_EVERY_S
        while True:
            try:
                async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            renewals: Sequence[Lease] = ()
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + RENEW_EVERY_S
                renewals = tuple(self.leases.values())
            if not await self._flush(renewals):
                self._wake.set()
                await asyncio.sleep(RETRY_EVERY_S)

    async def _flush(self, renewals: Sequence[Lease]) -> bool:
        """Sends what waits and renews; says whether the store took it all."""
        renewing = deque(renewals)
        while self._waiting or renewing:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            kept = list(batch)
            while renewing and len(batch) < BATCH:
                lease = renewing.popleft()
                if self.leases.get(lease.request_id) is lease:
                    batch.append(self._change("r", lease, LEASE_MS))
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    _, settled = await self._store.change(batch)
            except STORE_ERRORS as error:
                logger.warning("leases wait for the store: %s", type(error).__name__)
                self._waiting.extendleft(reversed(kept))
                return False
            except asyncio.CancelledError:
                # What was sent twice counts once.
                self._waiting.extendleft(reversed(kept))
                raise
            for request_id in settled & self.leases.keys():
                # This process was away for longer than a lease; the request still runs.
                self._waiting.append(Change("a", request_id, LEASE_MS))
        return True

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S * random.uniform(0.8, 1.2))
            try:
                await self._settle_expired()
            except STORE_ERRORS as error:
                logger.info("expired leases wait for the store: %s", type(error).__name__)
            await self._end_taken_away()

    async def _settle_expired(self) -> None:
        """Settles what web processes that died have left, by the requests' logs."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            expired = await self._store.expired(BATCH)
        for found in expired:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                logged = await self._store.logged(found.request_id)
            if logged is None:
                # It has never come to an engine.
                self._add(Change("y", found.request_id))
                continue
            prompt, output = found.prompt_tokens, logged.output_tokens
            cost = self._cost_units(found.model, prompt, found.cached_tokens, output)
            self._add(
                Change("x", found.request_id, 0, prompt, found.cached_tokens, prompt + output, cost)
            )

    async def _end_taken_away(self) -> None:
        """Ends the requests of keys that were revoked and of tenants that were blocked."""
        if self.taken_away is None:
            return
        for public_id in {lease.public_id for lease in self.leases.values()} - {""}:
            error = await self.taken_away(public_id)
            if error is not None:
                for lease in [x for x in self.leases.values() if x.public_id == public_id]:
                    lease.fail(error)


async def _keep(run: Callable[[], Awaitable[None]]) -> None:
    """Runs a task for ever; one that breaks is logged and started again."""
    while True:
        try:
            await run()
        except Exception:
            logger.exception("a part of admission broke; it starts again")
        await asyncio.sleep(RETRY_EVERY_S)
