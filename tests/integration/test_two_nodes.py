"""Two Ray nodes on one machine: one is drained and proven empty, then dies; no answer notices."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from benchmarks.chaos_clients import Client, Site
from benchmarks.chaos_journey import Door, End, Journey
from benchmarks.chaos_reference import SimulatedReference
from engine_pool.types import InstanceState, InstanceStatus
from tests.integration.installation import START_DEADLINE_S, Installation, wait_for
from tests.integration.operator import Operator
from tests.tiny_model import tiny_model

NODE, ADDRESS = "node-2", "127.0.0.2"
INSTANCES = 4
STREAMS = 8
TOKENS = 600
"""Some 20 s of decoding: the drain and the death come in mid-stream."""
BEGUN_TOKENS = 20
pytestmark = pytest.mark.timeout(900)
"""An installation and a second node start first, which takes minutes on a busy machine."""


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One instance on the head's node, and three more that come when a second node is there."""
    started = Installation(
        tmp_path_factory.mktemp("nodes"),
        FERRY_ENGINE="simulated",
        FERRY_INSTANCES="1",
        FERRY_MODEL=str(tiny_model()),
    )
    try:
        started.wait_ready()
        started.start_node(NODE, ADDRESS)
        with Operator(started) as operator:
            operator.change_pool("default", instances=INSTANCES)
            wait_for(lambda: len(serving(started)) == INSTANCES, "all serve", START_DEADLINE_S)
            # Ray spreads as well as it knows the nodes, and this one has just come.
            for number in range(INSTANCES, 1, -1):
                if not on_node(started):
                    restart(started, operator, f"i-{number:02}")
        yield started
    finally:
        started.stop()


def serving(pool: Installation) -> list[InstanceStatus]:
    return [s for s in pool.statuses() if s.state is InstanceState.SERVING]


def restart(pool: Installation, operator: Operator, name: str) -> None:
    """Has an instance started anew, where Ray thinks best."""
    before = {status.incarnation for status in serving(pool)}
    answer = operator.post(f"/instances/{name}/restart", {"reason": "another node"})
    assert answer.status_code == 202, answer.text

    def is_back() -> bool:
        now = serving(pool)
        return len(now) == INSTANCES and {s.incarnation for s in now} != before

    wait_for(is_back, f"{name} serves anew", START_DEADLINE_S)


def on_node(pool: Installation) -> dict[str, InstanceStatus]:
    """Returns the instances of the second node."""
    return {s.instance: s for s in pool.statuses() if s.node == NODE}


@contextmanager
def streams(pool: Installation) -> Iterator[list[Journey]]:
    """Has streams under way while the block runs, some on each instance, and waits for their
    ends."""
    site = Site((pool.url,), {"us": pool.login["api_key"]}, tiny_model().name, ("A long story.",))
    journeys = [Journey(n, Door.SSE, "us", 0, TOKENS, time.monotonic()) for n in range(STREAMS)]

    async def travel() -> None:
        async with (
            httpx.AsyncClient(timeout=httpx.Timeout(60)) as http,
            asyncio.TaskGroup() as all_,
        ):
            for journey in journeys:
                all_.create_task(Client(site, http).travel(journey))

    with ThreadPoolExecutor(1) as thread:
        travelling = thread.submit(asyncio.run, travel())
        wait_for(lambda: all(len(j.token_ids) >= BEGUN_TOKENS for j in journeys), "all have begun")
        yield journeys
        travelling.result()


def assert_right(journeys: list[Journey]) -> None:
    """Asserts that every token came, once, and the right one."""
    reference = SimulatedReference(tiny_model())
    for journey in journeys:
        assert journey.end is End.COMPLETED, (journey.code, journey.breaks)
        assert journey.wrong(reference.expected(journey)) == ""


def test_a_node_is_drained_without_cutting_anything(two_nodes: Installation) -> None:
    pool = two_nodes
    there = on_node(pool)
    assert there, "instances spread over both nodes"
    assert len(there) < INSTANCES
    with Operator(pool) as operator, streams(pool) as journeys:
        before = {load.instance: len(load.running) for load in pool.loads()}
        assert any(before[name] for name in there), "the node has work"
        answer = operator.post(f"/nodes/{NODE}/drain", {"reason": "maintenance"})
        assert answer.status_code == 202, answer.text

        def empty() -> dict[str, Any] | None:
            found = operator.get(f"/nodes/{NODE}")
            return found if found["is_safe_to_stop"] else None

        drained = wait_for(empty, "the node is proven empty")
        assert any(journey.end is End.OPEN for journey in journeys), "long before they end"
    assert {i["state"] for i in drained["instances"]} == {"drained"}
    assert {i["instance"] for i in drained["instances"]} == set(there)
    assert all(i["verified_unix_s"] for i in drained["instances"])
    assert_right(journeys)
    assert [journey.breaks for journey in journeys] == [[]] * STREAMS
    with Operator(pool) as operator:
        answer = operator.post(f"/nodes/{NODE}/release", {"reason": "done"})
        assert answer.status_code == 202, answer.text
    wait_for(lambda: len(serving(pool)) == INSTANCES, "all serve again")


def test_a_dead_node_s_requests_go_on_elsewhere(two_nodes: Installation) -> None:
    pool = two_nodes
    wait_for(lambda: len(serving(pool)) == INSTANCES, "all serve", START_DEADLINE_S)
    there = on_node(pool)
    assert there
    with streams(pool) as journeys:
        before = {load.instance: len(load.running) for load in pool.loads()}
        assert any(before[name] for name in there), "the node has work"
        # The parent first: it would tell Ray of the others' deaths, as no machine does that dies.
        for process in sorted(pool.processes(NODE), key=lambda p: p.create_time()):
            process.kill()
        lost = {status.incarnation for status in there.values()}

        def is_back() -> bool:
            now = serving(pool)
            return len(now) == INSTANCES and not lost & {s.incarnation for s in now}

        wait_for(is_back, "all serve anew", START_DEADLINE_S)
    assert not on_node(pool), "on the node that is left"
    assert_right(journeys)
    assert [journey.breaks for journey in journeys] == [[]] * STREAMS
