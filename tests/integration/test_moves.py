"""Moves of running requests on a whole installation: what a client and an operator see of them."""

import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from engine_pool.move_facts import FACTS
from engine_pool.simulator.sample_text import SENTENCES
from engine_pool.types import InstanceState
from tests.integration.installation import (
    DEADLINE_S,
    ROOT,
    START_DEADLINE_S,
    Installation,
    clean_environ,
    wait_for,
)
from tests.integration.operator import API, Operator
from tests.integration.streams import (
    WORDS,
    Event,
    chat_body,
    open_socket,
    open_stream,
    take,
    text_of,
)

TELL_MOVES = {"x-ferry-events": "1"}
LONG_PROMPT_WORDS = 5000
"""Of a request whose copy takes a second, so that it can be met in the middle of one."""
STREAMS, ROUNDS = 12, 5


@pytest.fixture
def operator(idle: Installation) -> Iterator[Operator]:
    wait_tested(idle)
    with Operator(idle) as one:
        yield one


def wait_tested(idle: Installation) -> None:
    """Waits until both engines serve and the pool has moved a request of its own."""
    wait_for(lambda: len(serving(idle)) == 2, "both engines serve", START_DEADLINE_S)
    wait_for(lambda: idle.store().hexists(FACTS, "self_test"), "the self-test's result")


def serving(idle: Installation) -> list[str]:
    return [s.instance for s in idle.statuses() if s.state is InstanceState.SERVING]


def whole_body(tokens: int, prompt: str = "") -> dict[str, Any]:
    """Returns a stream's request of exactly so many tokens, which its last chunk confirms."""
    words = [{"role": "user", "content": prompt}] if prompt else WORDS
    options = {"include_usage": True}
    return chat_body(tokens, ignore_eos=True, stream_options=options, messages=words)


def long_prompt() -> str:
    return "sea " * LONG_PROMPT_WORDS


def check_whole(events: list[Event], tokens: int) -> None:
    """The stream is complete: its numbers, its length, and its text, which a simulated engine
    reads from a book of sentences, each after the one before."""
    assert events[-1].data == "[DONE]"
    places = [int(e.event_id.rpartition(":")[2]) for e in events if e.event_id]
    assert places == list(range(1, len(places) + 1))
    assert events[-2].chunk["usage"]["completion_tokens"] == tokens
    text, pages = text_of(events), len(SENTENCES)
    books = (
        " ".join(SENTENCES[(first + n) % pages] for n in range(tokens)) for first in range(pages)
    )
    assert any(book.startswith(text) for book in books), text
    assert text


def audit_rows(idle: Installation, **fields: str) -> list[sqlite3.Row]:
    with sqlite3.connect(idle.var_dir / "ferry.sqlite3") as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("select * from audit_auditentry order by at").fetchall()
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]


def test_a_moved_stream_goes_on_as_if_nothing_had_happened(
    idle: Installation, operator: Operator
) -> None:
    with open_stream(idle.url, idle.headers, whole_body(160)) as stream:
        events = take(stream, 8)
        move = operator.migrate(events[0].chunk["id"])
        events += list(stream)
    check_whole(events, 160)
    record = operator.wait_end(move["migration_id"])
    assert record["state"] == "committed"
    assert {record["source"], record["destination"]} == set(serving(idle))
    assert record["asked_by"] == "operator operator"
    assert record["stages"][-1]["is_last"]
    assert record["sent_bytes"] == sum(stage["bytes"] for stage in record["stages"]) > 0
    assert record["tokens_at_pause"] >= record["tokens_at_start"] > 0
    assert record["downtime_ms"] > 0
    assert [m["name"] for m in record["messages"]][-3:] == ["Committed", "Tokens", "Tokens"]
    (audit,) = audit_rows(idle, migration_id=move["migration_id"])
    assert (audit["who"], audit["action"], audit["result"]) == (
        "operator",
        "migrate_request",
        "done",
    )
    assert json.loads(audit["before"]) == {"instance": record["source"]}
    assert json.loads(audit["after"]) == {"instance": record["destination"]}


def test_twelve_streams_are_moved_at_random_and_none_is_cut(
    idle: Installation, operator: Operator
) -> None:
    tokens, ids = 250, dict[int, str]()

    def read(number: int) -> list[Event]:
        with open_stream(idle.url, idle.headers, whole_body(tokens)) as stream:
            events = take(stream, 1)
            ids[number] = events[0].chunk["id"]
            return events + list(stream)

    chance, begun = random.Random(3), list[str]()
    with ThreadPoolExecutor(STREAMS) as readers:
        reading = [readers.submit(read, number) for number in range(STREAMS)]
        wait_for(lambda: len(ids) == STREAMS, "all have begun")
        while not all(one.done() for one in reading) and len(begun) < STREAMS * ROUNDS:
            one = chance.choice(list(ids.values()))
            answer = operator.post(f"/requests/{one}/migrate", {"reason": "at random"})
            if answer.status_code == 202:
                begun.append(answer.json()["migration_id"])
            else:
                # Ended, on its way already, or its engine has enough moves for now.
                assert answer.status_code in (404, 409), answer.text
        streams = [one.result() for one in reading]
    for events in streams:
        check_whole(events, tokens)
    ends = [operator.wait_end(migration_id) for migration_id in begun]
    committed = [end["request_id"] for end in ends if end["state"] == "committed"]
    assert len(set(committed)) == STREAMS, "each was moved"
    assert len(committed) > 2 * STREAMS, "and some of them several times"
    late = {end["abort_code"] for end in ends if end["state"] == "aborted"}
    assert late <= {"request_finished", "too_many", "no_blocks"}


def test_the_websocket_tells_of_a_move_between_two_tokens(
    idle: Installation, operator: Operator
) -> None:
    create = {
        "type": "response.create",
        "model": "SmolLM2-135M-Instruct",
        "messages": WORDS,
        "max_output_tokens": 120,
        "ignore_eos": True,
    }
    heard: list[dict[str, Any]] = []
    with open_socket(idle.url, idle.headers) as socket:
        socket.send(json.dumps(create))
        while len(heard) < 8:
            heard.append(json.loads(socket.recv(DEADLINE_S)))
        move = operator.migrate(heard[0]["response"]["id"])
        while heard[-1]["type"] != "response.completed":
            heard.append(json.loads(socket.recv(DEADLINE_S)))
            assert heard[-1]["type"] != "response.failed", heard[-1]
    (told,) = [event for event in heard if event["type"] == "request.migrated"]
    record = operator.wait_end(move["migration_id"])
    assert (told["from"], told["to"]) == (record["source"], record["destination"])
    assert told["at_token"] == record["output_tokens_at_pause"]
    assert [event["sequence_number"] for event in heard] == list(range(len(heard)))
    assert heard[-1]["response"]["usage"]["output_tokens"] == 120


def test_an_sse_client_that_asked_for_it_hears_of_a_move(
    idle: Installation, operator: Operator
) -> None:
    with (
        httpx.Client(base_url=idle.url, timeout=DEADLINE_S) as client,
        client.stream(
            "POST",
            "/v1/chat/completions",
            json=whole_body(100),
            headers=idle.headers | TELL_MOVES,
        ) as answer,
    ):
        lines = answer.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        move = operator.migrate(json.loads(first[6:])["id"])
        told = [line for line in lines if line.startswith(": request.migrated ")]
    (facts,) = [json.loads(line.removeprefix(": request.migrated ")) for line in told]
    assert (facts["from"], facts["to"]) == (move["source"], move["destination"])


def test_what_cannot_be_moved_is_refused_with_a_reason(
    idle: Installation, operator: Operator
) -> None:
    unknown = operator.post("/requests/chatcmpl-nobody/migrate", {})
    assert unknown.status_code == 404
    assert unknown.json()["error"]["param"] == "request_id"
    with open_stream(idle.url, idle.headers, whole_body(120)) as stream:
        events = take(stream, 3)
        request_id = events[0].chunk["id"]
        where = wait_for(lambda: place_of(idle, request_id), "it is reported")
        stays = operator.post(f"/requests/{request_id}/migrate", {"destination": where})
        assert (stays.status_code, stays.json()["error"]["code"]) == (409, "migration_refused")
        nowhere = operator.post(f"/requests/{request_id}/migrate", {"destination": "i-99"})
        assert nowhere.status_code == 409
        assert "i-99" in nowhere.json()["error"]["message"]
        path = f"/requests/{request_id}/migrate"
        assert operator.post_without_token(path).status_code == 403
        anonymous = httpx.post(f"{idle.url}{API}{path}", json={}, timeout=DEADLINE_S)
        assert anonymous.status_code == 401
        with_key = httpx.post(
            f"{idle.url}{API}{path}", json={}, headers=idle.headers, timeout=DEADLINE_S
        )
        assert with_key.status_code == 403, "a tenant's key moves nothing"
        check_whole(events + list(stream), 120)
    assert [row["result"] for row in audit_rows(idle, request_id=request_id)] == ["refused"] * 2


def place_of(idle: Installation, request_id: str) -> str | None:
    for load in idle.loads():
        if any(request_id in r.request_id for r in load.running):
            return load.instance
    return None


def test_a_cancelled_move_leaves_the_stream_where_it_is(
    idle: Installation, operator: Operator
) -> None:
    with open_stream(idle.url, idle.headers, whole_body(120, long_prompt())) as stream:
        events = take(stream, 3)
        migration_id = operator.migrate(events[0].chunk["id"])["migration_id"]
        operator.wait_move(migration_id, lambda move: move["state"] == "copying")
        cancelled = operator.post(f"/migrations/{migration_id}/cancel", {"reason": "not now"})
        assert cancelled.status_code == 202, cancelled.text
        record = operator.wait_end(migration_id)
        events += list(stream)
    check_whole(events, 120)
    assert (record["state"], record["abort_code"]) == ("aborted", "cancelled")
    again = operator.post(f"/migrations/{migration_id}/cancel", {})
    assert (again.status_code, again.json()["error"]["reason"]) == (409, "not_going_on")
    done, refused = audit_rows(idle, migration_id=migration_id, action="cancel_move")
    assert (done["result"], done["reason"], refused["result"]) == ("done", "not now", "refused")


def test_the_pool_has_tested_itself_and_the_preflight_says_so(
    idle: Installation, operator: Operator
) -> None:
    measured = operator.post("/migrations/preflight", {"tokens": [512]})
    assert measured.status_code == 200, measured.text
    report = operator.get("/migrations/preflight")
    assert report["ok"], report["verdict"]
    assert all(way["gb_per_s"] > 0 for way in report["ways"])
    test = report["self_test"]
    assert test["ok"], test["detail"]
    assert {test["source"], test["destination"]} == {"i-01", "i-02"}
    assert test["downtime_ms"] > 0
    assert 512 in [forecast["tokens"] for forecast in report["forecasts"]]


def test_the_preflight_command_finds_a_running_installation(idle: Installation) -> None:
    wait_tested(idle)
    ended = subprocess.run(
        [sys.executable, "manage.py", "migration_preflight", "--json"],
        cwd=ROOT,
        env=clean_environ(FERRY_VAR_DIR=str(idle.var_dir)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert report["ok"]
    assert len(report["ways"]) == 2
    assert {way["problem"] for way in report["ways"]} == {""}
    assert report["self_test"]["ok"]


def test_moves_to_an_engine_that_is_killed_cost_their_streams_nothing(
    idle: Installation, operator: Operator
) -> None:
    source, victim = "i-01", "i-02"
    # Of its own the pool would move one of them back.
    paused = operator.post("/rebalancing/pause", {"minutes": 5, "reason": "a test moves"})
    assert paused.json()["state"] == "paused"
    status = next(s for s in idle.statuses() if s.instance == victim)
    assert status.pid is not None
    with ThreadPoolExecutor(2) as readers:
        first, second = (open_long(idle) for _ in range(2))
        with first as one, second as two:
            streams = [(take(one, 2), one), (take(two, 2), two)]
            ids = [events[0].chunk["id"] for events, _ in streams]
            for request_id in ids:
                bring(idle, operator, request_id, source)
            moves = [operator.migrate(request_id, victim)["migration_id"] for request_id in ids]
            for move in moves:
                operator.wait_move(move, lambda m: m["state"] == "copying")
            psutil.Process(status.pid).kill()
            rests = [readers.submit(list, stream) for _, stream in streams]
            whole = [
                events + rest.result() for (events, _), rest in zip(streams, rests, strict=True)
            ]
    for events in whole:
        check_whole(events, 400)
    for move in moves:
        record = operator.wait_end(move)
        assert (record["state"], record["abort_code"]) == ("aborted", "peer_lost")
    wait_for(lambda: is_back(idle, victim, status.incarnation), "it is back", START_DEADLINE_S)
    assert operator.post("/rebalancing/resume", {}).status_code < 300


def open_long(idle: Installation) -> Any:
    return open_stream(idle.url, idle.headers, whole_body(400, long_prompt()))


def bring(idle: Installation, operator: Operator, request_id: str, where: str) -> None:
    """Moves a request to an instance, if it is not there."""
    if wait_for(lambda: place_of(idle, request_id), "it is reported") == where:
        return
    record = operator.wait_end(operator.migrate(request_id, where)["migration_id"])
    assert record["state"] == "committed", record["abort_reason"]
    wait_for(lambda: place_of(idle, request_id) == where, "it is reported there")


def is_back(idle: Installation, instance: str, before: str) -> bool:
    now = next((s for s in idle.statuses() if s.instance == instance), None)
    return now is not None and now.state is InstanceState.SERVING and now.incarnation != before
