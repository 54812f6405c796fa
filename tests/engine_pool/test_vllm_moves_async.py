"""Moves between engines that schedule a step while the one before it is still running, as on GPUs.

vLLM does so on CPU when it is told to; steps do not overlap there, but the books run ahead all the
same: a request is in flight when it is parked.
"""

import random
from collections.abc import Iterator

import pytest

from engine_pool import vllm_adapter
from migration.ports import Held, Refusal
from tests.engine_pool.vllm_pair import (
    MAX_RUNNING,
    Pair,
    forget_prefixes,
    make_engine,
    prompt_of,
    run_unmoved,
    wish,
)

pytestmark = pytest.mark.slow

SAMPLING = {"temperature": 0.9, "seed": 11, "presence_penalty": 0.7}
ROUNDS = 150
BATCH_TOKENS = 8192
SHORT = (100, 900)
CROWDING = (1605, 1660)
"""Prompt tokens, from and to. Three of these fill an engine's 39 blocks and grow out of them."""


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[object, object]]:
    make_config = vllm_adapter._vllm_config

    def make_asynchronous(spec, *, is_cpu):
        config = make_config(spec, is_cpu=is_cpu)
        config.scheduler_config.async_scheduling = True
        # No prompt is cut into chunks here; test_vllm_engine.py has those.
        config.scheduler_config.max_num_batched_tokens = BATCH_TOKENS
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_adapter, "_vllm_config", make_asynchronous)
        both = make_engine("i-01"), make_engine("i-02")
    yield both
    for engine in both:
        engine.close()


@pytest.fixture
def pair(engines) -> Iterator[Pair]:
    one = Pair(*engines)
    forget_prefixes(one)
    yield one
    for engine in engines:
        assert not engine.has_work()
        assert engine.load().used_tokens == 0
        assert engine._scheduler.requests == {}
        assert engine._scheduler.max_num_active_reqs == MAX_RUNNING


@pytest.mark.parametrize("moment", [1, 5, 6, 7, 20])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_request_in_flight_is_parked_when_its_step_is_done(pair, moment, steps):
    [stayed] = run_unmoved(pair, wish(prompt_of(250), **SAMPLING))
    moved = pair.add(wish(prompt_of(250), **SAMPLING))
    pair.until(moved, moment)
    how = pair.move(moved, steps=steps)
    # The step in flight was not lost.
    assert how.parked.computed_tokens == how.seen.computed_tokens + 1
    pair.finish()
    assert pair.answers[moved] == stayed


def test_a_request_that_ends_with_the_step_in_flight_is_not_parked(pair):
    moved = pair.add(wish(prompt_of(50), max_tokens=6))
    pair.until(moved, 5)
    source = pair.engines[0]
    assert source.moves.park(moved) is None
    assert source.moves.parked(moved) is None
    pair.finish()
    assert pair.answers[moved].finish_reason == "length"
    assert source.moves.parked(moved) is None
    assert source.moves.look(moved) == Refusal(
        "request_finished", "the request is not here any more"
    )
    source.moves.unpark(moved)


def test_a_request_parked_and_unparked_in_flight_goes_on(pair):
    [stayed] = run_unmoved(pair, wish(prompt_of(250), **SAMPLING))
    request_id = pair.add(wish(prompt_of(250), **SAMPLING))
    source = pair.engines[0]
    for moment in (3, 9, 15):
        pair.until(request_id, moment)
        assert source.moves.park(request_id) is None
        assert source.moves.parked(request_id) is None
        source.moves.unpark(request_id)
    pair.until(request_id, 17)
    assert source.moves.park(request_id) is None
    pair.parked(request_id)
    source.moves.unpark(request_id)
    pair.finish()
    assert pair.answers[request_id] == stayed


def test_blocks_that_a_step_still_writes_are_held_for_nobody(pair):
    source = pair.engines[0]
    request_id = pair.add(wish(prompt_of(1800), max_tokens=20))
    pair.until(request_id, 2)
    free = source._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    source.abort([request_id])
    assert source._scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    one = wish(prompt_of(1800, seed=2), max_tokens=20)
    assert isinstance(source.moves.hold(one, (), 1800), Held)
    refusal = source.moves.hold(wish(prompt_of(1800, seed=3), max_tokens=20), (), 1800)
    assert refusal.code == "no_blocks"
    source.moves.discard(one.request_id)
    pair.finish()


@pytest.mark.parametrize(
    ("seed", "prompt_tokens"),
    [
        pytest.param(1, SHORT, id="short"),
        pytest.param(2, SHORT, id="short-again"),
        pytest.param(3, CROWDING, id="crowded"),
        pytest.param(4, CROWDING, id="crowded-again"),
    ],
)
def test_whatever_happens_in_whatever_order_nothing_is_lost(pair, seed, prompt_tokens):
    """Moves, ended ones and whole ones, between steps; all chosen at random."""
    chance = random.Random(seed)
    wishes = [
        wish(
            prompt_of(chance.randint(*prompt_tokens), seed=n),
            arrival_s=float(n),
            temperature=1.0,
            seed=n,
            frequency_penalty=0.5,
            max_tokens=60,
        )
        for n in range(6)
    ]
    alone = [run_unmoved(pair, one)[0].tokens for one in wishes]
    names = []
    for number, one in enumerate(wishes):
        names.append(pair.add(one, at=number % 2))
        pair.until(names[-1], 1)
    before = preemptions(pair)
    moves = 0
    for _ in range(ROUNDS):
        moves += act_at_random(pair, chance, chance.choice(names))
    crowded = preemptions(pair) > before
    pair.finish()
    assert [pair.answers[name].tokens for name in names] == alone
    assert moves > 1
    assert crowded == (prompt_tokens == CROWDING)


def preemptions(pair: Pair) -> int:
    return sum(engine.load().preemptions_total for engine in pair.engines)


def act_at_random(pair: Pair, chance: random.Random, request_id: str) -> bool:
    """Does one thing that can happen to a request. Returns whether it moved."""
    at = pair.at[request_id]
    source, destination = pair.engines[at], pair.engines[1 - at]
    seen = source.moves.look(request_id)
    what = chance.choice(("step", "step", "move", "unpark", "discard"))
    if what == "step" or isinstance(seen, Refusal) or seen.is_prefilling:
        pair.step()
        preemptions(pair)
        return False
    if what == "unpark":
        assert source.moves.park(request_id) is None
        for _ in range(chance.randint(0, 2)):
            pair.step()
        source.moves.unpark(request_id)
        return False
    tokens = 0 if seen.is_queued else seen.computed_tokens + 2
    held = destination.moves.hold(pair.wishes[request_id], seen.output_token_ids, tokens)
    if isinstance(held, Refusal):
        assert held.code == "no_blocks"
        return False
    destination.moves.discard(request_id)
    if what == "discard" or len(seen.output_token_ids) > 57:
        return False
    pair.move(request_id)
    return True
