"""Parts that hang or lose their memory, on a running installation with PostgreSQL.

What goes on, who says so, and that all of it returns by itself.
"""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from controlplane.fleet.watch import WORKER_HEARTBEAT_KEY
from engine_pool.pool_spec import WANTED
from ops.postgresql import running_postgresql
from tests.integration.installation import DEADLINE_S, START_DEADLINE_S, Installation, wait_for
from tests.integration.operator import Operator
from tests.integration.streams import CHAT, chat_body, open_stream, take

DEGRADED = re.compile(r'ferry:degraded\{dependency="(\w+)"\} (\d)')


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A database server of this module's own: its address and its folder."""
    folder = tmp_path_factory.mktemp("postgresql")
    with running_postgresql(folder) as url:
        yield url, folder


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, postgresql: tuple[str, Path]
) -> Iterator[Installation]:
    made = Installation(
        tmp_path_factory.mktemp("away"),
        FERRY_ENGINE="simulated",
        FERRY_INSTANCES="2",
        DATABASE_URL=postgresql[0],
    )
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop()


@pytest.fixture
def whole(started: Installation) -> Installation:
    """The installation, with nothing away and no work."""
    started.wait_ready()
    wait_for(lambda: degraded(started) == set(), "nothing is away", START_DEADLINE_S)
    started.wait_idle()
    return started


def test_a_database_that_hangs_stops_no_request_and_pages_say_why(
    whole: Installation, postgresql: tuple[str, Path]
) -> None:
    with Operator(whole) as operator, ask_stream(whole, 400) as events:
        take(events, 3)
        with hanging(server_processes(postgresql[1])):
            wait_for(lambda: degraded(whole) == {"database"}, "it is noticed")
            ready = httpx.get(f"{whole.url}/readyz", timeout=DEADLINE_S)
            assert (ready.status_code, ready.json()["degraded"]) == (200, ["database"])

            known = chat(whole)
            assert known.status_code == 200
            unknown = chat(whole, {"Authorization": f"Bearer sk-{'0' * 12}-{'x' * 43}"})
            assert unknown.status_code == 503, "nobody says that it is wrong"
            assert unknown.json()["error"]["code"] == "database_unavailable"
            assert int(unknown.headers["retry-after"]) > 0

            page = operator.open("/cluster/")
            assert page.status_code == 503
            assert "The database does not answer" in page.text
            rest = httpx.get(f"{whole.url}/api/v1/tenants", timeout=DEADLINE_S)
            assert rest.status_code == 503
            assert rest.json()["error"]["code"] == "database_unavailable"
            assert list(events)[-1].data == "[DONE]", "streams go on"

        wait_for(lambda: degraded(whole) == set(), "it is back", START_DEADLINE_S)
        assert operator.open("/cluster/").status_code == 200
        record = wait_for(
            lambda: found(operator, f"/requests/{known.json()['id']}"),
            "what was served meanwhile is recorded",
        )
        assert record["output_tokens"] == known.json()["usage"]["completion_tokens"]


def test_serving_goes_on_while_celery_and_ray_s_head_hang(whole: Installation) -> None:
    heads = [p for p in whole.processes("ray") if "gcs_server" in p.name()]
    assert heads
    with ask_stream(whole) as events:
        take(events, 3)
        with hanging(whole.processes("worker") + heads):
            wait_for(lambda: degraded(whole) == {"ray", "worker"}, "both are noticed")
            ready = httpx.get(f"{whole.url}/readyz", timeout=DEADLINE_S)
            assert (ready.status_code, ready.json()["degraded"]) == (200, ["ray", "worker"])
            assert chat(whole).status_code == 200
            assert list(events)[-1].data == "[DONE]"
    wait_for(lambda: degraded(whole) == set(), "both are back", START_DEADLINE_S)


def test_a_store_that_lost_its_memory_is_told_everything_again(whole: Installation) -> None:
    pools = whole.store().hget(WANTED, "wanted")
    assert pools
    before = {status.incarnation for status in whole.statuses()}
    (store,) = whole.processes("store")
    with ask_stream(whole, 4000) as events:
        take(events, 3)
        store.kill()
        error = list(events)[-1].chunk["error"]
    assert (error["code"], error["resumable"]) == ("store_unavailable", False)
    whole.wait_ready()
    wait_for(lambda: tells(whole, WANTED), "the pools are published again")
    wait_for(lambda: tells(whole, WORKER_HEARTBEAT_KEY), "the worker's tasks run again")
    assert whole.store().hget(WANTED, "wanted") == pools
    wait_for(lambda: degraded(whole) == set(), "nothing is away", START_DEADLINE_S)
    assert {status.incarnation for status in whole.statuses()} == before, "the same engines"
    # More than the web process has idle connections to the store that was there before.
    assert {chat(whole).status_code for _ in range(20)} == {200}


def degraded(installation: Installation) -> set[str]:
    """Returns the dependencies that are away, as the metric says it."""
    text = httpx.get(f"{installation.url}/metrics", timeout=DEADLINE_S).text
    told = dict(DEGRADED.findall(text))
    assert {"store", "database", "worker", "beat", "ray", "pool", "engines"} <= told.keys()
    return {name for name, value in told.items() if value == "1"}


def chat(installation: Installation, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.post(
        f"{installation.url}{CHAT}",
        json=chat_body(3, stream=False),
        headers=headers or installation.headers,
        timeout=DEADLINE_S,
    )


def ask_stream(installation: Installation, tokens: int = 1200) -> Any:
    """Opens a stream that is longer than it takes to notice that a part is away."""
    body = chat_body(tokens, ignore_eos=True)
    return open_stream(installation.url, installation.headers, body)


def tells(installation: Installation, key: str) -> bool:
    return bool(installation.store().exists(key))


def found(operator: Operator, path: str) -> dict[str, Any] | None:
    answer = operator.open(f"/api/v1{path}")
    body: dict[str, Any] = answer.json()
    return body if answer.status_code == 200 and body.get("output_tokens") else None


def server_processes(folder: Path) -> list[psutil.Process]:
    """Returns the database server's processes, the one that takes connections among them."""
    first = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    server = psutil.Process(first)
    return [server, *server.children(recursive=True)]


@contextmanager
def hanging(processes: list[psutil.Process]) -> Iterator[None]:
    """Stops processes as if they hung, while the block runs."""
    try:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            if process.is_running():
                process.send_signal(signal.SIGCONT)
