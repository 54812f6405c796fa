"""An engine that hung and wakes up after its requests went on elsewhere may not say a word more:
two engine processes, a web process between them, and a real store."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import msgspec
import pytest
import redis

from engine_pool.client import PoolClient
from engine_pool.config import PoolConfig
from engine_pool.engine_spec import EngineSpec
from engine_pool.ports import EngineRequest
from engine_pool.simulator.answer import Answer
from engine_pool.submission import Submission
from engine_pool.token_log import TokenFrame, decode_all, log_key
from engine_pool.types import EngineKind, InstanceName, InstanceState, InstanceStatus
from tests.controlplane.fakes import DEADLINE_S, FakeGate, FakeSink, request_of, status_of, until
from tests.engine_pool.test_simulated_moves import TEXT
from tests.migration.engine_process import EngineProcess

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

TOKENS = 300
QUICK = 0.05
"""Part of the time that a simulated step usually takes, some 20 ms."""


class Engines(FakeGate):
    """The way to engine processes that live beside the test."""

    def __init__(self, url: str) -> None:
        super().__init__()
        config = PoolConfig(engine=EngineKind.SIMULATED, redis_url=url, report_interval_ms=50)
        self.processes = {
            name: EngineProcess(
                EngineSpec(InstanceName(name), f"{name}-a", config, "m", 1, 4096, TEXT)
            )
            for name in ("i-01", "i-02")
        }

    async def submit(self, actor: str, blob: bytes) -> dict[str, str]:
        requests = msgspec.msgpack.decode(blob, type=list[EngineRequest])
        self.requests += requests
        process = self.processes[actor.removeprefix("actor-")]
        refused = await asyncio.to_thread(process.ask, "submit", requests)
        assert isinstance(refused, list)
        return dict(refused)

    def status(self, name: str, state: InstanceState = InstanceState.SERVING) -> InstanceStatus:
        return replace(status_of(name, state, f"{name}-a"))


@contextlib.asynccontextmanager
async def pool_of_two(url: str) -> AsyncIterator[tuple[PoolClient, Engines]]:
    engines = Engines(url)
    client = PoolClient(PoolConfig(redis_url=url), engines)
    client.sink.sink = FakeSink()
    try:
        for process in engines.processes.values():
            await asyncio.to_thread(process.wait_ready)
        await client.start()
        await until(lambda: client.view.store_connected and client.reader.is_connected)
        client.view.apply(engines.status("i-01"))
        await until(lambda: "i-01" in client.view.loads)
        yield client, engines
    finally:
        await client.stop()
        for process in engines.processes.values():
            process.kill()


def endless(request_id: str) -> EngineRequest:
    return replace(
        request_of(request_id),
        max_tokens=TOKENS,
        min_tokens=TOKENS,
        arrival_unix_s=time.time(),
    )


def frames_of(store: "redis.Redis[bytes]", request_id: str) -> list[TokenFrame]:
    entries = store.xrange(log_key(request_id))
    blobs = [value for _, fields in entries for name, value in fields.items() if name != b"x"]
    return [f for blob in blobs for f in decode_all(blob) if isinstance(f, TokenFrame)]


def wait_refused(process: EngineProcess, ids: set[str]) -> None:
    """Returns when the log has refused frames of all these requests from an engine."""
    give_up_s = time.monotonic() + DEADLINE_S
    while True:
        refused = process.ask("refusals")
        assert isinstance(refused, list)
        if set(refused) == ids:
            return
        assert time.monotonic() < give_up_s, f"refused so far: {refused}"
        time.sleep(0.02)


def expected(request: EngineRequest) -> list[int]:
    return list(Answer(request, TEXT).first(TOKENS))


@pytest.mark.parametrize("ids", [("a",), ("a", "b", "c")])
async def test_an_engine_that_wakes_up_late_is_shut_out(
    store_url: str, store: "redis.Redis[bytes]", ids: Sequence[str]
) -> None:
    async with pool_of_two(store_url) as (client, engines):
        sink = client.sink.sink
        assert isinstance(sink, FakeSink)
        for request_id in ids:
            request = endless(request_id)
            await client.dispatcher.submit(Submission([request], lambda: 0, f"r-{request_id}", {}))
        zombie, other = engines.processes["i-01"], engines.processes["i-02"]
        await until(lambda: all(len(sink.tokens(i)) >= 5 for i in ids))
        zombie.stop()
        client.view.apply(engines.status("i-02"))
        await until(lambda: "i-02" in client.view.loads)
        client.view.apply(engines.status("i-01", InstanceState.LOST))
        await until(lambda: len(engines.requests) == 2 * len(ids))
        begun = {i: len(sink.tokens(i)) for i in ids}
        await until(lambda: all(len(sink.tokens(i)) > begun[i] for i in ids))
        # It wakes up in mid answer, and goes on with it as if nothing had been.
        zombie.go_on()
        await asyncio.to_thread(wait_refused, zombie, set(ids))
        await asyncio.to_thread(other.ask, "hurry", QUICK)
        await until(lambda: not client.reader.streams)
        for request_id in ids:
            said = sink.tokens(request_id)
            assert said == expected(endless(request_id)), "each token once, in its place"
            frames = frames_of(store, request_id)
            assert [t for f in frames for t in f.token_ids] == said
            by_zombie = [f.instance == "i-01" for f in frames]
            assert by_zombie == sorted(by_zombie, reverse=True), "not a word after it was lost"
        rooms = await asyncio.to_thread(zombie.rooms)
        assert rooms.running == rooms.waiting == (), "it has let go of them"
        assert (await asyncio.to_thread(other.rooms)).are_empty
