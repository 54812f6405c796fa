"""Installations that tests share: starting one takes longer than most tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.installation import Installation

MAX_RUNNING = 2
"""Requests in one step of an engine: few, so that a queue is easy to make."""


@pytest.fixture(scope="session")
def database() -> dict[str, str]:
    """The installation's settings for a database: its own SQLite file, or an empty database on the
    server that this run is for."""
    server = os.environ.get("DATABASE_URL")
    if server is None:
        return {}
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE installation")
    return {"DATABASE_URL": f"{server.rpartition('/')[0]}/installation"}


@pytest.fixture(scope="session")
def installation(
    tmp_path_factory: pytest.TempPathFactory, database: dict[str, str]
) -> Iterator[Installation]:
    """Two simulated engines and one web process, as `make up` starts them."""
    started = Installation(
        tmp_path_factory.mktemp("var"),
        FERRY_ENGINE="simulated",
        FERRY_INSTANCES="2",
        **database,
    )
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One real vLLM engine with the default model, which takes MAX_RUNNING requests at once."""
    started = Installation(
        tmp_path_factory.mktemp("real"),
        FERRY_ENGINE="vllm",
        FERRY_INSTANCES="1",
        FERRY_KV_CACHE_GIB="0.6",
        # In bfloat16 the answers of so small a model differ from one kind of processor to another.
        FERRY_DTYPE="float32",
        FERRY_MAX_RUNNING=str(MAX_RUNNING),
    )
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def second_url(installation: Installation) -> str:
    """The address of a second web process of the same installation."""
    return installation.start_second_web()


@pytest.fixture
def idle(installation: Installation) -> Installation:
    """The installation, up and without work, whatever the test before did to it."""
    installation.wait_ready()
    installation.wait_idle()
    return installation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What kills parts comes last, and everything here is slow."""
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.slow)
    order = {
        "test_moves.py": 1,
        "test_deaths.py": 2,
        "test_make_up.py": 3,
        "test_leaving.py": 4,
        "test_real_engines.py": 5,
        "test_real_moves.py": 6,
        "test_real_replays.py": 7,
    }
    ours.sort(key=lambda item: order.get(item.path.name, 0))
    items[:] = [item for item in items if item not in ours] + ours
