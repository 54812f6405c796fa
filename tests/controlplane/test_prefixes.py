"""Prefix-aware dispatch, through a real store: who has a prompt's beginning gets its like."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import redis

from engine_pool import ledger
from engine_pool.client import PoolClient
from engine_pool.config import PoolConfig
from engine_pool.prefix_map import MISSES_MAX
from engine_pool.submission import Sent, Submission
from engine_pool.token_log import LogTimes, TokenFrame, TokenLogWriter
from engine_pool.types import (
    EngineKind,
    InstanceLoad,
    InstanceName,
    InstanceState,
    InstanceStatus,
    PriorityClass,
)
from migration.report import MoveState
from tests.controlplane.fakes import (
    FakeGate,
    FakeSink,
    load_of,
    move_of,
    request_of,
    status_of,
    until,
)

pytestmark = pytest.mark.asyncio

SYSTEM = list(range(1000, 2024))
"""The shared beginning: 1,024 tokens."""
CACHED_TOKENS = 1024
BLOCK_TOKENS = 16


@pytest.fixture(autouse=True)
def _entries_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry of the ledger goes because the machine is slow."""
    monkeypatch.setattr(ledger, "LEDGER_LIFE_S", 60.0)


def status(name: str, engine: EngineKind = EngineKind.VLLM) -> InstanceStatus:
    return replace(status_of(name), engine=engine)


def load(name: str, seq: int = 1, used: int = 0) -> InstanceLoad:
    return replace(load_of(name, seq, used=used), capacity_tokens=100_000)


@contextlib.asynccontextmanager
async def web(url: str, **engines: EngineKind) -> AsyncIterator[PoolClient]:
    client = PoolClient(PoolConfig(redis_url=url), FakeGate())  # type: ignore[arg-type]
    client.sink.sink = FakeSink()
    await client.start()
    await until(lambda: client.view.store_connected and client.reader.is_connected)
    for name in ("i-01", "i-02", "i-03"):
        client.view.apply(status(name, engines.get(name.replace("-", ""), EngineKind.VLLM)))
        client.view.apply(load(name))
    try:
        yield client
    finally:
        await client.stop()


def submission(
    name: str, *, prompt: list[int] | None = None, salt: str = "", choices: int = 1
) -> Submission:
    ids = [*SYSTEM, *range(int(name), int(name) + 100)] if prompt is None else prompt
    requests = [request_of(f"{name}-{i}", len(ids)) for i in range(choices)]
    return Submission(requests, lambda: 0, f"record-{name}", {}, ids, salt)


async def submit(client: PoolClient, name: str, **more: object) -> Sent:
    return await client.dispatcher.submit(submission(name, **more))  # type: ignore[arg-type]


def begin(store: "redis.Redis[bytes]", client: PoolClient, sent: Sent, name: str, cached: int):
    """Writes a request's first token, with what its engine had of the prompt, and waits for it."""
    frame = TokenFrame(f"{name}-0", 1, 0, (7,), sent.instance, "stop", cached_tokens=cached)
    writer = TokenLogWriter(store, LogTimes())
    assert not writer.append([frame], frozenset([frame.request_id])).refused
    return until(lambda: not client.reader.streams_of([frame.request_id]))


async def test_twenty_with_one_beginning_go_where_it_is(store_url: str) -> None:
    async with web(store_url) as client:
        first = await submit(client, "0")
        for n in range(1, 20):
            sent = await submit(client, str(n))
            assert sent.instance == first.instance
            assert f"it holds {CACHED_TOKENS} tokens of the prompt" in sent.reason
        entries = client.view.pool_view(time.time()).in_flight
        whole = 1136
        assert [e.demand_tokens for e in entries] == [whole, *[whole - CACHED_TOKENS] * 19]


async def test_they_go_elsewhere_when_it_is_full_and_that_one_has_it_then(store_url: str) -> None:
    async with web(store_url) as client:
        first = await submit(client, "0")
        client.view.apply(load(first.instance, seq=2, used=98_900))
        second = await submit(client, "1")
        assert second.instance != first.instance
        assert "it holds" not in second.reason
        third = await submit(client, "2")
        assert third.instance == second.instance
        assert "it holds" in third.reason


async def test_another_salt_or_another_prompt_finds_nothing(store_url: str) -> None:
    async with web(store_url) as client:
        await submit(client, "0", salt="a")
        assert "it holds" in (await submit(client, "1", salt="a")).reason
        assert "it holds" not in (await submit(client, "2", salt="b")).reason
        assert "it holds" not in (await submit(client, "3")).reason
        assert "it holds" not in (await submit(client, "4", prompt=list(range(1100)))).reason


async def test_other_web_processes_know_it(store_url: str) -> None:
    async with web(store_url) as client, web(store_url) as other:
        sent = await submit(client, "0")
        await until(lambda: bool(other.view.ledger.entries()))
        again = await submit(other, "1")
        assert again.instance == sent.instance
        assert "it holds" in again.reason


async def test_a_hit_that_was_none_takes_away_what_was_not_used_since(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    older, missed, newer = (list(range(n, n + 300)) for n in (5000, 6000, 7000))
    async with web(store_url) as client:
        for name in ("i-02", "i-03"):
            client.view.apply(load(name, seq=2, used=99_500))
        for name, prompt in (("0", older), ("1", missed), ("2", newer)):
            await submit(client, name, prompt=prompt)
        sent = await submit(client, "3", prompt=[*missed, 3])
        assert "it holds 256" in sent.reason
        await begin(store, client, sent, "3", 128)
        assert "it holds" not in (await submit(client, "4", prompt=[*older, 4])).reason
        for name, prompt in (("5", missed), ("6", newer)):
            assert "it holds 256" in (await submit(client, name, prompt=prompt)).reason


async def test_an_engine_without_a_cache_is_found_out(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with web(store_url) as client:
        first = await submit(client, "0")
        await begin(store, client, first, "0", 0)
        for n in range(1, MISSES_MAX + 1):
            sent = await submit(client, str(n))
            assert "it holds" in sent.reason
            await begin(store, client, sent, str(n), 0)
        assert "it holds" not in (await submit(client, "50")).reason


async def test_simulated_engines_are_known_to_have_none(store_url: str) -> None:
    simulated = dict.fromkeys(("i01", "i02", "i03"), EngineKind.SIMULATED)
    async with web(store_url, **simulated) as client:
        await submit(client, "0")
        assert "it holds" not in (await submit(client, "1")).reason
        assert [e.prefix for e in client.view.ledger.entries()] == [(), ()]


async def test_a_moved_prompt_is_at_its_destination_too(store_url: str) -> None:
    async with web(store_url) as client:
        first = await submit(client, "0")
        to = next(i for i in ("i-01", "i-02", "i-03") if i != first.instance)
        client.view.apply(move_of("0-0", MoveState.COMMITTED, first.instance, to))
        client.view.apply(load(first.instance, seq=2, used=98_900))
        sent = await submit(client, "1")
        assert sent.instance == to
        assert "it holds" in sent.reason


async def test_a_restarted_or_lost_instance_has_nothing(store_url: str) -> None:
    async with web(store_url) as client:
        first = await submit(client, "0")
        restarted = replace(status(first.instance), incarnation="b")
        client.view.apply(restarted)
        client.view.apply(replace(load(first.instance), incarnation="b"))
        assert "it holds" not in (await submit(client, "1")).reason
        second = await submit(client, "2")
        assert "it holds" in second.reason
        client.view.apply(replace(restarted, instance=second.instance, state=InstanceState.LOST))
        assert "it holds" not in (await submit(client, "3")).reason


async def test_what_refused_a_prompt_does_not_have_it(store_url: str) -> None:
    async with web(store_url) as client:
        gate = client.moves._gate
        assert isinstance(gate, FakeGate)
        first = await submit(client, "0", prompt=list(range(20)))
        gate.refusing = {f"actor-{i}": "full" for i in ("i-01", "i-02", "i-03")}
        del gate.refusing[f"actor-{first.instance}"]
        sent = await submit(client, "1")
        assert sent.instance == first.instance
        gate.refusing = {}
        assert (await submit(client, "2")).instance == sent.instance
        hashes = client.dispatcher._chooser.prefixes.hashes_of(submission("9"))
        holders = client.dispatcher._chooser.prefixes.holders(hashes, 1124, BLOCK_TOKENS)
        assert holders == {sent.instance: CACHED_TOKENS}


@pytest.mark.parametrize(
    ("prompt_tokens", "choices", "cached", "expected"),
    [
        pytest.param(100, 1, 0, [112], id="whole blocks"),
        pytest.param(15, 1, 0, [16], id="one block, with place for the first output"),
        pytest.param(16, 1, 0, [32], id="the first output begins a block"),
        pytest.param(100, 3, 0, [112, 16, 16], id="choices share the full blocks"),
        pytest.param(96, 2, 0, [112, 16], id="choices of a prompt that ends with a block"),
        pytest.param(100, 1, 64, [48], id="cached blocks are there"),
        pytest.param(100, 1, 70, [48], id="cached tokens count in whole blocks"),
        pytest.param(100, 2, 96, [16, 16], id="all that can be cached is"),
        pytest.param(100, 1, 5000, [16], id="never nothing"),
    ],
)
async def test_demand_of(
    prompt_tokens: int, choices: int, cached: int, expected: list[int]
) -> None:
    requests = [request_of(str(i), prompt_tokens) for i in range(choices)]
    one = Submission(requests, lambda: 0, "record", {})
    assert one.demands(BLOCK_TOKENS, cached) == expected


async def test_the_class_of_a_request_reaches_the_ledger(store_url: str) -> None:
    async with web(store_url) as client:
        wanted = submission("0")
        wanted.requests[0] = replace(wanted.requests[0], priority_class=PriorityClass.HIGH)
        sent = await client.dispatcher.submit(wanted)
        (entry,) = client.view.ledger.entries()
        assert entry.priority_class is PriorityClass.HIGH
        assert entry.instance == InstanceName(sent.instance)
