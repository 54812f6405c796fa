"""kill -9 of each part, in mid-stream: what the client sees, and that everything comes back."""

import httpx
import psutil

from engine_pool.types import InstanceState, InstanceStatus
from tests.integration.installation import START_DEADLINE_S, Installation, wait_for
from tests.integration.operator import Operator
from tests.integration.streams import (
    CHAT,
    DETACH,
    Event,
    chat_body,
    open_stream,
    take,
)

TOKENS = 400
"""Some seconds of decoding: long enough to be killed in mid answer, soon done elsewhere."""
LONG = 4000
"""Tokens with `ignore_eos`: more than a minute of decoding, so none ends by itself."""


def test_a_killed_web_server_comes_back_and_its_stream_goes_on_elsewhere(
    idle: Installation, second_url: str
) -> None:
    body = chat_body(400)
    events: list[Event] = []
    (web,) = idle.processes("web")
    try:
        with open_stream(idle.url, idle.headers | DETACH, body) as stream:
            events += take(stream, 8)
            web.kill()
            events += list(stream)
    except httpx.TransportError:
        pass  # what a client sees of a server that dies
    assert events[-1].data != "[DONE]", "it died in mid-stream"
    after = {"Last-Event-ID": events[-1].event_id}
    with open_stream(second_url, idle.headers | after, body) as stream:
        rest = list(stream)
    assert rest[-1].data == "[DONE]"
    ids = [event.event_id for event in events + rest if event.event_id]
    assert len(set(ids)) == len(ids)
    places = [int(event_id.rpartition(":")[2]) for event_id in ids]
    assert places == list(range(1, len(places) + 1)), "no gap"
    idle.wait_ready()
    assert "web ended: killed by SIGKILL; restart in" in idle.output.read_text()


def test_a_killed_engines_streams_go_on_at_the_other_and_it_comes_back(
    idle: Installation,
) -> None:
    wait_for(lambda: _serving(idle) == 2, "both engines serve", START_DEADLINE_S)
    body = chat_body(TOKENS, ignore_eos=True)
    with open_stream(idle.url, idle.headers, body) as stream:
        events = take(stream, 5)
        status = _holder(idle)
        victim = status.instance
        assert status.pid is not None
        psutil.Process(status.pid).kill()
        events += list(stream)
    assert_whole(events, TOKENS)
    with Operator(idle) as operator:
        record = operator.ended_request(events[0].chunk["id"])
    assert (record["state"], record["replays"], record["migrations"]) == ("completed", 1, 0)
    assert record["output_tokens"] == TOKENS
    answer = idle.client().chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=[{"role": "user", "content": "Still there?"}],
        max_tokens=4,
    )
    assert answer.usage is not None, "the other engine serves meanwhile"

    def is_back() -> bool:
        now = next((s for s in idle.statuses() if s.instance == victim), None)
        return (
            now is not None
            and now.state is InstanceState.SERVING
            and now.incarnation != status.incarnation
        )

    wait_for(is_back, "the engine is back", START_DEADLINE_S)


def test_a_stream_whose_server_and_engine_die_together_goes_on_elsewhere(
    idle: Installation, second_url: str
) -> None:
    wait_for(lambda: _serving(idle) == 2, "both engines serve", START_DEADLINE_S)
    body = chat_body(TOKENS, ignore_eos=True)
    events: list[Event] = []
    (web,) = idle.processes("web")
    try:
        with open_stream(idle.url, idle.headers | DETACH, body) as stream:
            events += take(stream, 8)
            status = _holder(idle)
            assert status.pid is not None
            web.kill()
            psutil.Process(status.pid).kill()
            events += list(stream)
    except httpx.TransportError:
        pass  # what a client sees of a server that dies
    after = {"Last-Event-ID": events[-1].event_id}
    with open_stream(second_url, idle.headers | after, body) as stream:
        events += list(stream)
    assert_whole(events, TOKENS)
    idle.wait_ready()
    with Operator(idle) as operator:
        record = operator.ended_request(events[0].chunk["id"])
    assert (record["state"], record["replays"]) == ("completed", 1)
    assert record["output_tokens"] == TOKENS, "billed once"
    wait_for(lambda: _serving(idle) == 2, "both engines serve", START_DEADLINE_S)


def test_a_killed_store_ends_streams_with_an_error_and_all_recovers(idle: Installation) -> None:
    (store,) = idle.processes("store")
    # While it is stopped the supervisor sees a living process: time to look at the outage.
    with open_stream(idle.url, idle.headers, chat_body(LONG, ignore_eos=True)) as stream:
        take(stream, 5)
        store.suspend()
        rest = list(stream)
    assert rest[-1].chunk["error"]["code"] == "store_unavailable"
    refused = httpx.post(
        f"{idle.url}{CHAT}", json=chat_body(4, stream=False), headers=idle.headers, timeout=30
    )
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "store_unavailable"
    assert int(refused.headers["retry-after"]) > 0
    ready = httpx.get(f"{idle.url}/readyz", timeout=30)
    assert ready.status_code == 503
    assert "store" in ready.json()["reason"]
    store.kill()
    idle.wait_ready()
    wait_for(lambda: _serving(idle) == 2, "both engines report again", START_DEADLINE_S)
    answer = idle.client(max_retries=3).chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=[{"role": "user", "content": "Back?"}],
        max_tokens=4,
    )
    assert answer.usage is not None
    assert "store ended: killed by SIGKILL; restart in" in idle.output.read_text()


def test_a_killed_pool_process_disturbs_no_stream(idle: Installation) -> None:
    (pool,) = idle.processes("pool")
    before = {status.incarnation for status in idle.statuses()}
    with open_stream(idle.url, idle.headers, chat_body(100)) as stream:
        take(stream, 5)
        pool.kill()
        assert list(stream)[-1].data == "[DONE]"
    wait_for(lambda: [p for p in idle.processes("pool") if p.pid != pool.pid], "a new pool process")
    wait_for(lambda: _serving(idle) == 2, "both engines serve", START_DEADLINE_S)
    assert {status.incarnation for status in idle.statuses()} == before, "the same engines"


def test_a_killed_ray_head_takes_its_engines_along_and_all_recovers(idle: Installation) -> None:
    wait_for(lambda: _serving(idle) == 2, "both engines serve", START_DEADLINE_S)
    before = {status.incarnation for status in idle.statuses()}
    raylet = next(p for p in idle.processes("ray") if p.name().endswith("raylet"))
    events: list[Event] = []
    try:
        with open_stream(idle.url, idle.headers, chat_body(LONG, ignore_eos=True)) as stream:
            events += take(stream, 5)
            raylet.kill()
            events += list(stream)
    except httpx.TransportError:
        pass  # the web server is restarted with it
    assert events[-1].data != "[DONE]"
    wait_for(
        lambda: (
            _serving(idle) == 2 and not before & {status.incarnation for status in idle.statuses()}
        ),
        "both engines serve anew",
        START_DEADLINE_S,
    )
    idle.wait_ready()
    answer = idle.client(max_retries=3).chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=[{"role": "user", "content": "Back?"}],
        max_tokens=4,
    )
    assert answer.usage is not None


def assert_whole(events: list[Event], tokens: int) -> None:
    """A simulated engine says a token a chunk; the first chunk has none, the last has the end."""
    assert events[-1].data == "[DONE]", events[-1].data
    places = [int(e.event_id.rpartition(":")[2]) for e in events if e.data != "[DONE]"]
    assert places == list(range(1, len(places) + 1)), "no gap and no repeat"
    assert events[-2].chunk["choices"][0]["finish_reason"] == "length"


def _holder(idle: Installation) -> InstanceStatus:
    """Returns the instance that runs the only request."""
    victim = wait_for(
        lambda: next((load.instance for load in idle.loads() if load.running), None),
        "an engine runs it",
    )
    return next(status for status in idle.statuses() if status.instance == victim)


def _serving(idle: Installation) -> int:
    return sum(status.state is InstanceState.SERVING for status in idle.statuses())
