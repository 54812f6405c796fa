"""Whatever a task waits for, it ends when it is cancelled, at any moment."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine_pool import task_end
from engine_pool.store import connect_async
from engine_pool.task_end import end_tasks
from tests.controlplane.fakes import assert_ends_after

TURNS = 60
"""Of the event loop: a question and its answer take about ten."""


async def in_a_loop(ask: Callable[[], Awaitable[object]]) -> None:
    while True:
        await ask()
        await asyncio.sleep(0)


async def test_a_loop_that_asks_the_store_ends_at_any_moment(store_url: str) -> None:
    store = connect_async(store_url)
    for turns in range(TURNS):
        asking = asyncio.create_task(in_a_loop(store.ping))
        await assert_ends_after(asking, turns)
    assert await store.ping()
    await store.aclose()


async def test_a_task_that_does_not_end_is_named_and_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_end, "END_WITHIN_S", 0.01)
    may_end = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await may_end.wait()

    task = asyncio.create_task(stubborn(), name="a stubborn one")
    await asyncio.sleep(0)
    await end_tasks([task])
    assert not task.done()
    assert "did not end: a stubborn one" in caplog.text
    may_end.set()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()


async def test_no_tasks_have_ended_at_once() -> None:
    await end_tasks([])
