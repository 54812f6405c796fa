"""Drains of a whole installation under load: no stream is cut, whatever happens meanwhile."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import pytest

from engine_pool.types import InstanceState, InstanceStatus
from tests.integration.installation import START_DEADLINE_S, Installation, wait_for
from tests.integration.operator import Operator
from tests.integration.streams import Event, chat_body, open_stream

S = InstanceState
COUNT = 3
STREAMS = 9
TOKENS = 800
"""Of each stream: half a minute of decoding."""


class Load:
    """Streams that are open at the same time, each read to its end."""

    def __init__(self, at: Installation) -> None:
        self._at = at
        self._begun = [threading.Event() for _ in range(STREAMS)]
        self._threads = ThreadPoolExecutor(STREAMS)
        self._streams: list[Future[list[Event]]] = [
            self._threads.submit(self._read, begun) for begun in self._begun
        ]
        assert all(one.wait(START_DEADLINE_S) for one in self._begun)

    def _read(self, begun: threading.Event) -> list[Event]:
        body = chat_body(TOKENS, ignore_eos=True, stream_options={"include_usage": True})
        events = []
        with open_stream(self._at.url, self._at.headers, body) as stream:
            for event in stream:
                events.append(event)
                begun.set()
        return events

    def check(self) -> None:
        """Waits for all: each came to its end, with every token once."""
        for stream in self._streams:
            events = stream.result(START_DEADLINE_S)
            assert events[-1].data == "[DONE]", events[-1].data
            assert events[-2].chunk["usage"]["completion_tokens"] == TOKENS
            ids = [e.event_id for e in events if e.event_id]
            places = [int(event_id.rpartition(":")[2]) for event_id in ids]
            assert places == list(range(1, len(places) + 1)), "no gap, no repeat"
        self._threads.shutdown()


def status(at: Installation, name: str = "i-01") -> InstanceStatus:
    return next(s for s in at.statuses() if s.instance == name)


def until_state(at: Installation, state: InstanceState, name: str = "i-01") -> InstanceStatus:
    wait_for(lambda: status(at, name).state is state, f"{name} is {state.value}")
    return status(at, name)


def all_serve(at: Installation) -> bool:
    statuses = at.statuses()
    return len(statuses) == COUNT and all(s.state is S.SERVING for s in statuses)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    started = Installation(
        tmp_path_factory.mktemp("drains"), FERRY_ENGINE="simulated", FERRY_INSTANCES=str(COUNT)
    )
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def operator(three: Installation) -> Iterator[Operator]:
    with Operator(three) as one:
        yield one


@pytest.fixture
def load(three: Installation) -> Load:
    """Streams on three instances that serve."""
    wait_for(lambda: all_serve(three), "all serve", START_DEADLINE_S)
    return Load(three)


def ask(operator: Operator, action: str, **terms: object) -> None:
    answer = operator.post(f"/instances/i-01/{action}", {"reason": "a fan", **terms})
    assert answer.status_code in (200, 202, 204), answer.text


def test_a_drain_cuts_no_stream_also_when_the_pool_process_dies(
    three: Installation, operator: Operator, load: Load
) -> None:
    before = status(three)
    ask(operator, "drain")
    until_state(three, S.DRAINING)
    (pool,) = three.processes("pool")
    pool.kill()
    drained = until_state(three, S.DRAINED)
    assert drained.incarnation == before.incarnation
    assert drained.drain is not None
    assert drained.drain.verified_unix_s is not None
    load.check()
    ask(operator, "release")
    assert until_state(three, S.SERVING).incarnation == before.incarnation, "undrained"


def test_what_is_left_at_the_deadline_goes_on_elsewhere(
    three: Installation, operator: Operator, load: Load
) -> None:
    ask(operator, "stop", deadline_s=1, leftover="replay")
    until_state(three, S.STOPPED)
    load.check()
    ask(operator, "release")
    until_state(three, S.SERVING)


def test_sigterm_to_an_engine_cuts_no_stream(three: Installation, load: Load) -> None:
    before = status(three)
    psutil.Process(before.pid).terminate()
    wait_for(lambda: status(three).incarnation != before.incarnation, "another engine")
    until_state(three, S.SERVING)
    assert not psutil.pid_exists(before.pid or 0)
    load.check()


def test_new_engine_settings_cut_no_stream(
    three: Installation, operator: Operator, load: Load
) -> None:
    before = {s.instance: s.incarnation for s in three.statuses()}
    operator.change_pool("default", engine_settings={"max_running": 48})

    def all_are_new() -> bool:
        return all_serve(three) and not any(
            s.is_outdated or s.incarnation == before[s.instance] for s in three.statuses()
        )

    wait_for(all_are_new, "all have the new settings", START_DEADLINE_S)
    load.check()
