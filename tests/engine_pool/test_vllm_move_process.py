"""Real vLLM engines in processes of their own: what they answer, moved over gloo, and what is left
when one of them is killed."""

from collections.abc import Iterator
from itertools import count

import pytest

from engine_pool.config import PoolConfig
from engine_pool.ports import EngineRequest
from engine_pool.token_log import route_key
from engine_pool.types import EngineKind
from engine_pool.vllm_detail import decode_detail
from migration.report import MoveReport, MoveState
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.vllm_pair import prompt_of, wish
from tests.migration.engine_process import EngineProcess
from tests.migration.rig import Rig, until
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.slow

CONFIG = PoolConfig(
    engine=EngineKind.VLLM,
    model=str(tiny_model()),
    kv_cache_gib=0.02,
    max_running=8,
    orphan_grace_s=600.0,
    migration_stage_timeout_s=60.0,
    migration_pause_timeout_s=60.0,
    migration_commit_timeout_s=60.0,
)
PROMPT_TOKENS, TOKENS = 700, 300
GREEDY = {"max_tokens": TOKENS}
SEEDED = {"max_tokens": TOKENS, "temperature": 0.9, "top_p": 0.9, "seed": 5}
_numbers = count(1)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """Two engines for the tests in the order of this file: the last ones kill them."""
    store = StoreServer()
    store.start()
    two = Rig(store, CONFIG)
    try:
        yield two
    finally:
        two.end()
        store.kill()


def asked(kind: dict[str, object], name: str) -> EngineRequest:
    return wish(prompt_of(PROMPT_TOKENS), name=f"{name}-{next(_numbers)}", **kind)


def answer(rig: Rig, request_id: str) -> tuple[list[int], list[tuple[object, object]], str | None]:
    """Waits for an answer's end; returns its tokens, logprobs and why it ended."""
    last = rig.wait_end(request_id)
    said: list[tuple[object, object]] = []
    for frame in rig.frames(request_id):
        if frame.detail is not None:
            logprobs, _ = decode_detail(frame.detail)
            assert logprobs is not None
            ids, values = logprobs.logprob_token_ids.tolist(), logprobs.logprobs.tolist()
            said += zip(ids, values, strict=True)
    return rig.tokens(request_id), said, last.finish_reason


def crowd(rig: Rig) -> list[str]:
    """Has both engines decode other requests too."""
    names = []
    for engine in (rig.a, rig.b):
        others = [
            wish(prompt_of(90, seed=n), name=f"other-{next(_numbers)}", max_tokens=600)
            for n in (5, 6)
        ]
        rig.submit(engine, *others)
        names += [other.request_id for other in others]
    until(lambda: all(rig.tokens(name) for name in names), "the others decode")
    return names


def move(
    rig: Rig, request_id: str, source: EngineProcess, destination: EngineProcess, name: str
) -> None:
    assert rig.migrate(request_id, source, destination, name) == ""
    until(
        lambda: (
            rig.instances(request_id)[-1] == destination.name or rig.frames(request_id)[-1].is_last
        ),
        f"{request_id} is at {destination.name}",
    )


def committed(rig: Rig, name: str) -> MoveReport:
    report = rig.wait_move(name)
    assert report.state is MoveState.COMMITTED, report.abort_reason
    return report


@pytest.mark.parametrize("kind", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_an_answer_moved_there_and_back_is_the_very_same(rig: Rig, kind: dict[str, object]) -> None:
    stays = asked(kind, "stays")
    rig.submit(rig.a, stays)
    unmoved = answer(rig, stays.request_id)
    crowd_names = crowd(rig)
    moved = asked(kind, "moved")
    name = moved.request_id
    rig.submit(rig.a, moved)
    until(lambda: len(rig.tokens(name)) > 5, "it decodes")
    move(rig, name, rig.a, rig.b, f"{name}-there")
    move(rig, name, rig.b, rig.a, f"{name}-back")
    assert answer(rig, name) == unmoved
    assert rig.instances(name) == ["i-01", "i-02", "i-01"]
    there, back = committed(rig, f"{name}-there"), committed(rig, f"{name}-back")
    assert there.sent_bytes > 0
    assert back.cached_blocks > 0, "what it left behind is still in the prefix cache"
    for other in crowd_names:
        assert rig.wait_end(other).finish_reason == "length"
    rig.wait_empty(rig.a)
    rig.wait_empty(rig.b)


def test_a_probe_s_answer_begins_the_same_whatever_its_length(rig: Rig) -> None:
    said = []
    for tokens in (40, 90):
        name = f"probe-{tokens}"
        rig.redis.set(route_key(name), "nobody")
        assert rig.a.ask("submit_probe", name, 300, tokens) == []
        rig.wait_end(name)
        said.append(rig.tokens(name))
    assert said[0] == said[1][:40]
    assert [len(one) for one in said] == [40, 90]


def test_a_destination_killed_in_mid_copy_costs_the_answer_nothing(rig: Rig) -> None:
    stays, moved = asked(SEEDED, "stays"), asked(SEEDED, "moved")
    rig.submit(rig.a, stays)
    unmoved = answer(rig, stays.request_id)
    rig.submit(rig.a, moved)
    until(lambda: len(rig.tokens(moved.request_id)) > 5, "it decodes")
    rig.a.ask("shut", "copies")
    assert rig.migrate(moved.request_id, rig.a, rig.b, "cut") == ""
    until(lambda: rig.a.ask("is_reached", "copies"), "it copies")
    rig.b.kill()
    rig.b = rig.new("i-02")
    rig.a.ask("open_all")
    assert answer(rig, moved.request_id) == unmoved
    report = rig.wait_move("cut")
    assert (report.state, report.abort_code) == (MoveState.ABORTED, "peer_lost")
    rig.wait_empty(rig.a)
    rig.b.wait_ready()


def test_an_answer_survives_its_source_after_the_commit(rig: Rig) -> None:
    stays, moved = asked(SEEDED, "stays"), asked(SEEDED, "moved")
    rig.submit(rig.a, stays)
    unmoved = answer(rig, stays.request_id)
    rig.submit(rig.a, moved)
    until(lambda: len(rig.tokens(moved.request_id)) > 5, "it decodes")
    rig.b.ask("hold", "Committed")
    assert rig.migrate(moved.request_id, rig.a, rig.b, "left") == ""
    until(lambda: rig.b.has_stopped("Committed"), "it is the destination's")
    rig.a.kill()
    rig.b.ask("open_all")
    assert answer(rig, moved.request_id) == unmoved
    assert rig.instances(moved.request_id) == ["i-01", "i-02"]
    rig.wait_empty(rig.b)
