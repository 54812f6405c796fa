"""Late binding: requests wait in the web process until an instance has room for them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from engine_pool import gateway_queue, ledger
from engine_pool.client import PoolClient
from engine_pool.config import PoolConfig
from engine_pool.errors import NoInstance, PoolError, RequestTooLarge
from engine_pool.policy.dispatch import Choice
from engine_pool.policy.settings import DispatchRule, PolicySettings
from engine_pool.submission import Sent, Submission
from engine_pool.types import (
    InstanceName,
    InstanceState,
    PriorityClass,
)
from tests.controlplane.fakes import FakeGate, FakeSink, load_of, request_of, status_of, until

pytestmark = pytest.mark.asyncio

CAPACITY_TOKENS = 10_000
LATE = DispatchRule(is_late_binding=True)


@pytest.fixture(autouse=True)
def _entries_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry of the ledger goes because the machine is slow."""
    monkeypatch.setattr(ledger, "LEDGER_LIFE_S", 60.0)


def config(url: str, rule: DispatchRule = LATE, ageing_s: float = 0.0) -> PoolConfig:
    return PoolConfig(redis_url=url, policy=PolicySettings(dispatch=rule), ageing_s=ageing_s)


class Pool:
    """One web process and the instances that it knows."""

    def __init__(self, settings: PoolConfig) -> None:
        self.gate = FakeGate()
        self.client = PoolClient(settings, self.gate)  # type: ignore[arg-type]
        self.client.sink.sink = FakeSink()
        self.tasks: list[asyncio.Task[Sent]] = []
        self._seq = 1
        self.released: list[str] = []
        """Requests in the order in which they got their places; engines may get them in another."""
        self.client.view.ledger.add_listener(
            lambda entry: self.released.append(entry.request_id), lambda entry: None
        )

    def report(self, name: str = "i-01", used: int = 0, running: Sequence[str] = ("r",)) -> None:
        """Says how much of an instance is in use."""
        self._seq += 1
        self.client.view.apply(load_of(name, self._seq, used=used, running=running))

    def send(self, name: str, **more: object) -> asyncio.Task[Sent]:
        """Sends a request, which may wait."""
        one = replace(request_of(name, 1000), **more)  # type: ignore[arg-type]
        task = asyncio.create_task(
            self.client.dispatcher.submit(Submission([one], lambda: 0, f"record-{name}", {}))
        )
        self.tasks.append(task)
        return task

    async def queued(self, count: int) -> None:
        await until(lambda: self.client.dispatcher.queue.lengths().total() == count)


@contextlib.asynccontextmanager
async def pool(
    url: str, *names: str, rule: DispatchRule = LATE, ageing_s: float = 0.0
) -> AsyncIterator[Pool]:
    made = Pool(config(url, rule, ageing_s))
    await made.client.start()
    await until(lambda: made.client.view.store_connected and made.client.reader.is_connected)
    for name in names:
        made.client.view.apply(status_of(name))
        made.report(name, used=CAPACITY_TOKENS)
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


async def test_where_there_is_room_nobody_waits(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02") as p:
        p.report("i-02", used=2000)
        sent = await p.send("a")
        assert sent.instance == "i-02"
        assert p.released == ["a"]


async def test_a_request_waits_until_an_instance_has_room(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02") as p:
        waiting = p.send("a")
        await p.queued(1)
        assert p.gate.calls == []
        p.report("i-02", used=8000)
        sent = await waiting
        assert sent.instance == "i-02"
        assert sent.waited_s > 0
        await p.queued(0)


async def test_what_is_released_counts_for_those_behind_it(store_url: str) -> None:
    async with pool(store_url, "i-01") as p:
        tasks = [p.send(name) for name in "abcd"]
        await p.queued(4)
        p.report(used=CAPACITY_TOKENS - 2500)
        await p.queued(2)
        await asyncio.gather(*tasks[:2])
        assert p.released == ["a", "b"]


async def test_a_higher_class_goes_first(store_url: str) -> None:
    async with pool(store_url, "i-01") as p:
        for name, priority in (("l", "low"), ("n", "normal"), ("h", "high")):
            p.send(name, priority_class=PriorityClass(priority))
        await p.queued(3)
        for left in (2, 1, 0):
            p.report(used=CAPACITY_TOKENS - 1500, running=[*p.released, "r"])
            await p.queued(left)
            await until(lambda left=left: len(p.released) == 3 - left)
        assert p.released == ["h", "n", "l"]


async def test_tenants_of_a_class_take_turns(store_url: str) -> None:
    async with pool(store_url, "i-01") as p:
        for name in ("a1", "a2", "a3"):
            p.send(name, tenant="a")
        await p.queued(3)
        p.send("b1", tenant="b")
        await p.queued(4)
        p.report(used=CAPACITY_TOKENS - 2500)
        await until(lambda: len(p.released) == 2)
        assert p.released == ["a1", "b1"]


async def test_an_old_request_of_a_low_class_does_not_wait_for_ever(store_url: str) -> None:
    async with pool(store_url, "i-01", ageing_s=0.01) as p:
        p.send("low", priority_class=PriorityClass.LOW)
        await p.queued(1)
        await until(lambda: p.client.dispatcher.queue.oldest_s() > 0.05)
        # Looks that place nobody raise it above what comes now.
        p.report(used=CAPACITY_TOKENS)
        await until(lambda: p.client.dispatcher.queue._line.in_order()[0].turn.rank == 0)
        p.send("normal")
        await p.queued(2)
        p.report(used=CAPACITY_TOKENS - 1500)
        await until(lambda: bool(p.released))
        assert p.released[0] == "low"


async def test_smaller_ones_pass_a_head_that_fits_nowhere_for_a_while_only(store_url: str) -> None:
    for late_pass_s, expected in ((30.0, ["small"]), (0.0, [])):
        rule = replace(LATE, late_pass_s=late_pass_s)
        async with pool(store_url, "i-01", rule=rule) as p:
            p.send("big", prompt_tokens=5000)
            await p.queued(1)
            p.send("small")
            await p.queued(2)
            p.report(used=CAPACITY_TOKENS - 2000)
            await p.queued(2 - len(expected))
            p.report(used=CAPACITY_TOKENS - 2000, running=["r", *expected])
            await until(lambda e=expected: p.released == e)
            p.report(used=0, running=["r", *expected])
            await p.queued(0)
            await until(lambda: len(p.released) == 2)
            assert p.released[len(expected)] == "big"


async def test_an_idle_instance_takes_whatever_it_can_hold(store_url: str) -> None:
    async with pool(store_url, "i-01", rule=replace(LATE, late_floor_steps=5000.0)) as p:
        waiting = p.send("a", prompt_tokens=9000)
        await p.queued(1)
        p.report(used=100, running=())
        assert (await waiting).instance == "i-01"


async def test_a_full_batch_has_no_room(store_url: str) -> None:
    async with pool(store_url, "i-01") as p:
        p.report(used=0, running=[f"r{i}" for i in range(64)])
        waiting = p.send("a")
        await p.queued(1)
        p.report(used=0, running=[f"r{i}" for i in range(63)])
        await waiting


async def test_who_leaves_while_waiting_is_never_sent_and_holds_nobody_up(store_url: str) -> None:
    async with pool(store_url, "i-01") as p:
        gone, other = p.send("a", prompt_tokens=9000), p.send("b")
        await p.queued(2)
        gone.cancel()
        await asyncio.wait([gone])
        assert gone.cancelled()
        await p.queued(1)
        p.report(used=0)
        await other
        assert [r.request_id for r in p.gate.requests] == ["b"]
        assert p.client.reader.streams_of(["a"]) == []


async def test_who_leaves_at_the_moment_of_release_leaves_no_trace_in_the_ledger(
    store_url: str,
) -> None:
    async with pool(store_url, "i-01") as p:
        gone = p.send("a")
        await p.queued(1)
        waiting = p.client.dispatcher.queue._line.in_order()[0]
        take = waiting.wish.take

        def take_and_leave(choice: Choice) -> None:
            take(choice)
            # Before the request's own task hears of its place.
            asyncio.get_running_loop().call_soon(gone.cancel)

        waiting.wish = replace(waiting.wish, take=take_and_leave)
        p.report(used=0)
        await asyncio.wait([gone])
        assert gone.cancelled()
        assert p.gate.requests == []
        assert p.client.view.ledger.entries() == ()


async def test_a_request_too_large_for_every_instance_is_refused_at_once(store_url: str) -> None:
    async with pool(store_url, "i-01") as p:
        assert isinstance(await failure(p.send("a", prompt_tokens=50_000)), RequestTooLarge)


async def test_a_request_does_not_wait_for_an_instance_that_has_gone(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02") as p:
        large = replace(load_of("i-02", 50, used=15_000, running=["r"]), capacity_tokens=20_000)
        p.client.view.apply(large)
        waiting = p.send("a", prompt_tokens=15_000)
        await p.queued(1)
        p.client.view.apply(InstanceName("i-02"))
        assert isinstance(await failure(waiting), RequestTooLarge)


async def test_when_nobody_serves_for_too_long_all_are_given_up(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_queue, "NOBODY_MAX_S", 0.05)
    monkeypatch.setattr(gateway_queue, "TICK_S", 0.02)
    async with pool(store_url, "i-01") as p:
        tasks = [p.send("a"), p.send("b")]
        await p.queued(2)
        p.client.view.apply(status_of("i-01", InstanceState.LOST))
        for task in tasks:
            assert isinstance(await failure(task), NoInstance)
        assert p.gate.requests == []


async def test_a_pool_that_is_back_in_time_serves_those_who_waited(store_url: str) -> None:
    async with pool(store_url) as p:
        waiting = p.send("a")
        await p.queued(1)
        p.client.view.apply(status_of("i-01"))
        p.report(used=0)
        assert (await waiting).instance == "i-01"


async def test_nobody_waits_for_ever(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_queue, "WAIT_MAX_S", 0.05)
    async with pool(store_url, "i-01") as p:
        error = await failure(p.send("a"))
        assert isinstance(error, NoInstance)
        assert "had room" in str(error)
        await p.queued(0)


async def test_a_full_queue_refuses_and_a_higher_class_takes_the_last_place(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_queue, "WAITING_MAX", 2)
    async with pool(store_url, "i-01") as p:
        first, last = p.send("a"), p.send("b")
        await p.queued(2)
        refused = await failure(p.send("c"))
        assert isinstance(refused, NoInstance)
        assert "2 requests wait" in str(refused)
        high = p.send("d", priority_class=PriorityClass.HIGH)
        assert isinstance(await failure(last), NoInstance)
        p.report(used=0)
        await asyncio.gather(first, high)
        assert p.released == ["d", "a"]


async def test_web_processes_share_room_by_the_ledger(store_url: str) -> None:
    async with pool(store_url, "i-01") as p, pool(store_url, "i-01") as q:
        p.report(used=CAPACITY_TOKENS - 1500)
        await p.send("a")
        await until(lambda: bool(q.client.view.ledger.entries()))
        q.report(used=CAPACITY_TOKENS - 1500)
        q.send("b")
        await q.queued(1)
        q.report(used=CAPACITY_TOKENS - 1500, running=["r", "a"])
        await until(lambda: q.released == ["a", "b"])


async def test_what_one_refuses_another_gets_at_once(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02") as p:
        p.gate.refusing["actor-i-01"] = "it is full"
        waiting = p.send("a")
        await p.queued(1)
        p.report("i-01", used=0)
        assert (await waiting).instance == "i-02"
