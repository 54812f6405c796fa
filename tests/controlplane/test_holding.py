"""Requests that wait for the first instance of a pool at zero, against a real store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis

from engine_pool import holding, ledger
from engine_pool.client import PoolClient
from engine_pool.config import PoolConfig
from engine_pool.errors import (
    NoInstance,
    PoolError,
    PoolStarting,
    ServerStopping,
    StoreUnavailable,
)
from engine_pool.policy.settings import DispatchRule, PolicySettings
from engine_pool.pool_keys import demand_key
from engine_pool.submission import Sent, Submission
from engine_pool.types import InstanceName, InstanceState, PriorityClass
from tests.controlplane.fakes import FakeGate, FakeSink, load_of, request_of, status_of, until

pytestmark = pytest.mark.asyncio

HOLD_S = 300.0
"""Nothing here waits for so long."""


@pytest.fixture(autouse=True)
def _entries_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry of the ledger goes because the machine is slow."""
    monkeypatch.setattr(ledger, "LEDGER_LIFE_S", 60.0)


class Pool:
    """One web process that knows no instance yet."""

    def __init__(self, settings: PoolConfig) -> None:
        self.gate = FakeGate()
        self.client = PoolClient(settings, self.gate)  # type: ignore[arg-type]
        self.client.sink.sink = FakeSink()
        self.tasks: list[asyncio.Task[Sent]] = []
        self.placed: list[str] = []
        """Requests in the order in which they got their places."""
        self.client.view.ledger.add_listener(
            lambda entry: self.placed.append(entry.request_id), lambda entry: None
        )

    def serve(self, name: str = "i-01") -> None:
        """Brings an instance that serves."""
        self.client.view.apply(status_of(name))
        self.client.view.apply(load_of(name))

    def lose(self, name: str) -> None:
        """Takes it away."""
        self.client.view.apply(InstanceName(name))

    def send(self, name: str, priority_class: str = "normal") -> asyncio.Task[Sent]:
        """Sends a request, which waits."""
        one = replace(request_of(name, 100), priority_class=PriorityClass(priority_class))
        task = asyncio.create_task(
            self.client.dispatcher.submit(Submission([one], lambda: 0, f"record-{name}", {}))
        )
        self.tasks.append(task)
        return task

    async def held(self, count: int) -> None:
        await until(lambda: len(self.client.dispatcher.holding) == count)


@contextlib.asynccontextmanager
async def pool(
    url: str, hold_s: float = HOLD_S, hold_max: int = 10, rule: DispatchRule | None = None
) -> AsyncIterator[Pool]:
    policy = PolicySettings(dispatch=rule) if rule else PolicySettings()
    made = Pool(PoolConfig(redis_url=url, hold_s=hold_s, hold_max=hold_max, policy=policy))
    await made.client.start()
    await until(lambda: made.client.view.store_connected and made.client.reader.is_connected)
    try:
        yield made
    finally:
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
        await made.client.stop()


async def failure(task: asyncio.Task[Sent]) -> PoolError:
    with pytest.raises(PoolError) as raised:
        await task
    return raised.value


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "late binding"])
async def test_a_request_waits_for_the_first_instance_and_the_store_is_told(
    store_url: str, store: "redis.Redis[bytes]", is_late: bool
) -> None:
    async with pool(store_url, rule=DispatchRule(is_late_binding=is_late)) as p:
        waiting = p.send("a")
        await p.held(1)
        await until(lambda: store.get(demand_key("default")) == b"1")
        assert 0 < store.ttl(demand_key("default")) <= holding.DEMAND_LIFE_S
        assert p.gate.calls == []
        p.client.view.apply(status_of("i-01", InstanceState.STARTING))
        p.client.view.apply(load_of("i-01"))
        await asyncio.sleep(0)
        await p.held(1)
        p.serve()
        sent = await waiting
        assert sent.instance == "i-01"
        assert sent.waited_s > 0
        await p.held(0)


async def test_without_a_hold_it_is_refused_at_once(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, hold_s=0.0) as p:
        assert isinstance(await failure(p.send("a")), NoInstance)
        assert store.get(demand_key("default")) is None


async def test_they_go_on_by_class_and_then_as_they_came(store_url: str) -> None:
    async with pool(store_url) as p:
        for name, priority in (("l", "low"), ("n1", "normal"), ("n2", "normal"), ("h", "high")):
            p.send(name, priority)
            await p.held(len(p.tasks))
        lengths = p.client.dispatcher.holding.lengths()
        assert (lengths[PriorityClass.NORMAL], lengths[PriorityClass.LOW]) == (2, 1)
        assert p.client.dispatcher.holding.oldest_s() > 0
        p.serve()
        await asyncio.gather(*p.tasks)
        assert p.placed == ["h", "n1", "n2", "l"]


async def test_only_so_many_wait_and_the_others_are_refused_at_once(store_url: str) -> None:
    async with pool(store_url, hold_max=2) as p:
        first, second = p.send("a"), p.send("b")
        await p.held(2)
        refused = await failure(p.send("c", "high"))
        assert (type(refused), refused.code) == (NoInstance, "server_is_overloaded")
        assert "2 requests wait" in str(refused)
        p.serve()
        await asyncio.gather(first, second)


async def test_after_the_time_the_error_says_that_the_pool_starts(store_url: str) -> None:
    async with pool(store_url, hold_s=0.2) as p:
        p.client.view.apply(status_of("i-01", InstanceState.STARTING))
        error = await failure(p.send("a"))
        assert (type(error), error.code) == (PoolStarting, "pool_starting")
        assert "0.2 s" in str(error)
        assert "none of 1 instances serves (starting)" in str(error)
        assert len(p.client.dispatcher.holding) == 0
        assert p.client.reader.streams == ()


async def test_who_leaves_waits_no_longer_and_the_demand_is_forgotten(
    store_url: str, store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "DEMAND_LIFE_S", 1)
    async with pool(store_url) as p:
        gone = p.send("a")
        await until(lambda: store.get(demand_key("default")) == b"1")
        gone.cancel()
        await p.held(0)
        await until(lambda: store.get(demand_key("default")) is None)
        p.serve()
        await p.send("b")
        assert p.placed == ["b"]


async def test_an_instance_that_goes_at_that_moment_is_as_if_it_had_never_come(
    store_url: str,
) -> None:
    async with pool(store_url) as p:
        first, second = p.send("a"), p.send("b")
        await p.held(2)
        p.serve()
        # After those who wait were told, and before their tasks hear of it.
        asyncio.get_running_loop().call_soon(p.lose, "i-01")
        await until(lambda: not p.client.view.statuses)
        await p.held(2)
        assert p.gate.requests == []
        p.serve("i-02")
        sent = await asyncio.gather(first, second)
        assert {s.instance for s in sent} == {"i-02"}


async def test_without_a_store_nobody_waits_for_what_cannot_come(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(store_url) as p:

        async def fail(*args: object, **more: object) -> None:
            raise redis.ConnectionError("away")

        monkeypatch.setattr(p.client.store, "set", fail)
        assert isinstance(await failure(p.send("a")), StoreUnavailable)


async def test_those_who_wait_are_sent_away_when_nobody_will_come(store_url: str) -> None:
    async with pool(store_url) as p:
        waiting = p.send("a")
        await p.held(1)
        p.client.use(replace(p.client.config, hold_s=0.0))
        assert isinstance(await failure(waiting), NoInstance)
    async with pool(store_url) as p:
        waiting = p.send("a")
        await p.held(1)
        p.client.dispatcher.give_up_waiting(ServerStopping("It stops."))
        assert isinstance(await failure(waiting), ServerStopping)
