"""The steps in which a web process ends: not ready, serves on, farewell, the port."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from controlplane.gateway.exchange import Receive, Scope, Send
from controlplane.leaving import Leaving
from tests.controlplane.fakes import until

pytestmark = pytest.mark.asyncio
LONG_S = 3600.0
"""A grace that a test does not wait for."""
SHORT_S = 0.05


class FakePools:
    """Pools that note what they are told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin_drain(self) -> None:
        self.told.append("drain")

    def begin_stop(self) -> None:
        self.told.append("stop")


class FakeSocket:
    def __init__(self, of: Leaving, is_busy: bool = False, fails: bool = False) -> None:
        self.is_busy = is_busy
        self.is_gone = False
        self._of, self._fails = of, fails
        of.sockets.add(self)

    async def go_away(self) -> None:
        self.is_gone = True
        self._of.sockets.discard(self)
        if self._fails:
            raise RuntimeError("its client has just left")


class Answer:
    """An HTTP answer that ends when a test says so."""

    def __init__(self, of: Leaving) -> None:
        self.ends = asyncio.Event()
        self.heads: list[MutableMapping[str, Any]] = []
        self.task = asyncio.create_task(of.answer(self._app, {}, self._receive, self._send))

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.ends.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def _receive(self) -> MutableMapping[str, Any]:
        raise AssertionError("nobody asks")

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.heads.append(message)


class World:
    def __init__(self) -> None:
        self.leaving = Leaving()
        self.pools = FakePools()
        self.is_finished = False

    def begin(self, grace_s: float) -> None:
        self.leaving.begin(self.pools, grace_s, self._finish)  # type: ignore[arg-type]

    def _finish(self) -> None:
        self.is_finished = True


async def test_with_nothing_open_it_ends_soon() -> None:
    w = World()
    w.begin(SHORT_S)
    await until(lambda: w.is_finished)
    assert w.pools.told == ["drain", "stop"]


async def test_a_running_answer_is_waited_for_and_closes_its_connection() -> None:
    w = World()
    answer = Answer(w.leaving)
    await asyncio.sleep(0)
    w.begin(4 * SHORT_S + LONG_S)
    await until(lambda: w.pools.told == ["drain"])
    assert not w.is_finished
    answer.ends.set()
    await answer.task
    assert answer.heads[0]["headers"] == [(b"a", b"b"), (b"connection", b"close")]


async def test_before_it_leaves_connections_are_kept() -> None:
    w = World()
    answer = Answer(w.leaving)
    answer.ends.set()
    await answer.task
    assert answer.heads[0]["headers"] == [(b"a", b"b")]


async def test_what_does_not_end_in_time_is_let_go_of_and_then_waited_for() -> None:
    w = World()
    answer, socket = Answer(w.leaving), FakeSocket(w.leaving, is_busy=True)
    await asyncio.sleep(0)
    w.begin(SHORT_S)
    await until(lambda: w.pools.told == ["drain", "stop"] and socket.is_gone)
    answer.ends.set()
    await until(lambda: w.is_finished)


async def test_an_idle_socket_is_closed_and_one_that_fails_holds_nothing_up() -> None:
    w = World()
    sockets = [FakeSocket(w.leaving, fails=True), FakeSocket(w.leaving)]
    w.begin(SHORT_S)
    await until(lambda: w.is_finished)
    assert [socket.is_gone for socket in sockets] == [True, True]


async def test_a_second_signal_begins_nothing_anew() -> None:
    w = World()
    w.begin(SHORT_S)
    w.begin(SHORT_S)
    await until(lambda: w.is_finished)
    assert w.pools.told == ["drain", "stop"]
