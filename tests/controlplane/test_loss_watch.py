"""Without replay an instance's death becomes the end of its streams, in the log."""

import pytest
import redis

from engine_pool.token_log import LogTimes, TokenLogReader
from engine_pool.types import InstanceState
from tests.controlplane.fakes import FakeSink, Producer, load_of, status_of, until
from tests.controlplane.test_dispatcher import pool, submission

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(status_of("i-01", InstanceState.LOST), id="lost"),
        pytest.param(status_of("i-01", InstanceState.STARTING, "b"), id="started anew"),
        pytest.param("i-01", id="gone for good"),
    ],
)
async def test_a_dead_instance_ends_its_streams(store_url: str, after: object) -> None:
    used = {"i-02": 5000}
    async with pool(store_url, "i-01", "i-02", used=used, replay=False) as (client, _):
        await client.dispatcher.submit(submission("a"))
        client.view.apply(after)  # type: ignore[arg-type]
        sink = client.sink.sink
        assert isinstance(sink, FakeSink)
        await until(lambda: bool(sink.frames))
        assert sink.frames[0].error is not None
        assert sink.frames[0].error.code == "instance_lost"
        # Who resumes it later reads the same.
        frames, _ = await TokenLogReader(client.store, LogTimes()).read_after("a")
        assert frames[-1].error == sink.frames[0].error


async def test_the_streams_of_other_instances_go_on(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 5000}) as (client, _):
        await client.dispatcher.submit(submission("a"))
        client.view.apply(status_of("i-02", InstanceState.LOST))
        client.view.apply(status_of("i-01", InstanceState.DRAINING))
        assert [s.request_id for s in client.reader.streams] == ["a"]
        assert client.replays.waiting == 0


async def test_a_request_that_its_engine_has_forgotten_ends(
    store_url: str, store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_pool.loss_watch.TICK_S", 0.01)
    async with pool(store_url, "i-01", replay=False) as (client, _):
        await client.dispatcher.submit(submission("a"))
        Producer(store).write("a", 0, [1])
        sink = client.sink.sink
        assert isinstance(sink, FakeSink)
        seq = 2

        def reported() -> bool:
            nonlocal seq
            seq += 1
            client.view.apply(load_of("i-01", seq=seq))
            return any(f.error for f in sink.frames)

        await until(reported)
        assert sink.tokens("a") == [1]
