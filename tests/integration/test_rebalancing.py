"""An overloaded instance gives requests away by itself, and nobody who reads a stream notices."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from engine_pool.policy.freeness import breakdown
from engine_pool.policy.settings import RebalanceRule
from engine_pool.types import InstanceLoad
from tests.integration.installation import Installation, wait_for
from tests.integration.operator import Operator
from tests.integration.streams import Event, open_stream, take
from tests.integration.test_moves import audit_rows, check_whole, serving, wait_tested, whole_body

STREAMS = 9
PROMPT_WORDS = 1250
"""A word is a token: nine such requests nearly fill one simulated engine's 12,800 tokens."""
TOKENS = 500
RULE = RebalanceRule()


@pytest.fixture
def operator(idle: Installation) -> Iterator[Operator]:
    wait_tested(idle)
    with Operator(idle) as one:
        yield one
        if one.get("/rebalancing")["pause"]:
            one.post("/rebalancing/resume", {})


def load_at(idle: Installation, instance: str) -> InstanceLoad:
    return next(load for load in idle.loads() if load.instance == instance)


def crowd(idle: Installation, operator: Operator, ids: list[str], instance: str) -> None:
    """Moves requests to one instance until no more fits, as no operator should."""
    for one in ids:
        if one in [r.request_id for r in load_at(idle, instance).running]:
            continue
        answer = operator.post(f"/requests/{one}/migrate", {"destination": instance})
        if answer.status_code != 202:
            # Full, or the one before has come here only now.
            assert "KV tokens free" in answer.text or "already" in answer.text, answer.text
            continue
        operator.wait_end(answer.json()["migration_id"])


def by_itself(operator: Operator, ids: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the rebalancer's moves of these requests; other tests have left some of theirs."""
    moves = operator.get("/migrations", state="committed", limit="50")["migrations"]
    own = set(ids)
    return [m for m in moves if m["asked_by"] == "rebalancer" and m["request_id"] in own]


def test_an_overloaded_instance_gives_requests_away_and_its_streams_stay_whole(
    idle: Installation, operator: Operator
) -> None:
    answer = operator.post("/rebalancing/pause", {"minutes": 5, "reason": "a crowd is made"})
    assert answer.json()["state"] == "paused"
    first, ids = serving(idle)[0], dict[int, str]()

    def read(number: int) -> list[Event]:
        body = whole_body(TOKENS, "sea " * PROMPT_WORDS)
        with open_stream(idle.url, idle.headers, body) as stream:
            events = take(stream, 1)
            ids[number] = events[0].chunk["id"]
            return events + list(stream)

    with ThreadPoolExecutor(STREAMS) as readers:
        reading: list[Future[list[Event]]] = [readers.submit(read, n) for n in range(STREAMS)]
        wait_for(lambda: len(ids) == STREAMS, "all have begun")
        crowd(idle, operator, list(ids.values()), first)
        wait_for(
            lambda: breakdown(load_at(idle, first)).freeness_steps < RULE.below_steps,
            f"{first} is short of room",
        )
        assert not by_itself(operator, ids.values())
        assert operator.post("/rebalancing/resume", {}).status_code == 200
        moves = wait_for(lambda: by_itself(operator, ids.values()), f"{first} gives one away")
        streams = [one.result() for one in reading]
    for events in streams:
        check_whole(events, TOKENS)
    assert {move["source"] for move in moves} == {first}
    assert all(f"< {RULE.below_steps:g} and " in move["reason"] for move in moves)
    told = operator.get("/rebalancing")
    assert told["started_total"] >= len(moves)
    done = [(row["action"], row["result"]) for row in audit_rows(idle, object="default")]
    assert done[-2:] == [("pause_rebalancing", "done"), ("resume_rebalancing", "done")]
