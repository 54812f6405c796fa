"""The books of a moving request on real engines: who has it, which blocks, and that nothing is left
behind when a move ends early."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from engine_pool.errors import EngineFailed
from engine_pool.ports import EngineRequest
from engine_pool.types import PriorityClass
from migration.ports import Held, Parked, Refusal
from tests.engine_pool.vllm_pair import (
    MAX_RUNNING,
    Pair,
    copy_blocks,
    forget_prefixes,
    make_engine,
    prompt_of,
    run_unmoved,
    wish,
)
from tests.tiny_model import MAX_MODEL_LEN

pytestmark = pytest.mark.slow

BLOCK_TOKENS = 128
SAMPLING = {"temperature": 0.9, "seed": 11, "presence_penalty": 0.7}


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[object, object]]:
    both = make_engine("i-01"), make_engine("i-02")
    yield both
    for engine in both:
        engine.close()


@pytest.fixture
def pair(engines) -> Iterator[Pair]:
    one = Pair(*engines)
    forget_prefixes(one)
    yield one
    left = [leftovers(engine) for engine in engines]
    for engine in engines:
        # A test that fails leaves the engines clean for the next one.
        for request_id in list(engine._scheduler.requests):
            engine.moves.discard(request_id)
        engine.abort(list(engine._scheduler.requests))
        run_dry(engine)
    assert left == [{}, {}]


def leftovers(engine) -> dict[str, object]:
    """Returns what an engine without requests should not have."""
    scheduler = engine._scheduler
    found = {
        "work": engine.has_work(),
        "used_tokens": engine.load().used_tokens,
        "requests": list(scheduler.requests),
        "places": MAX_RUNNING - scheduler.max_num_active_reqs,
    }
    return {what: value for what, value in found.items() if value}


def run_dry(engine) -> None:
    while engine.has_work():
        engine.step()


def test_two_engines_of_one_model_have_one_shape(engines):
    first, second = (engine.moves.shape for engine in engines)
    assert first == second
    assert first.layers == 2
    assert first.block_size_tokens == BLOCK_TOKENS
    assert first.block_bytes == engines[0].kv.block_bytes == 65536
    assert "CPU_ATTN" in first.layout


def test_the_way_back_sends_only_what_is_new(pair):
    moved = pair.add(wish(prompt_of(600), max_tokens=400))
    pair.until(moved, 2)
    there = pair.move(moved, steps=2)
    assert (there.sent_blocks, there.cached_blocks) == (5, 0)
    pair.until(moved, 30)
    back = pair.move(moved)
    assert (back.sent_blocks, back.cached_blocks) == (1, 4)
    pair.until(moved, 32)
    pair.engines[0].abort([moved])
    pair.finish()


def test_a_request_that_comes_back_before_the_next_step_goes_on(pair):
    [stayed] = run_unmoved(pair, wish(prompt_of(300), **SAMPLING))
    moved = pair.add(wish(prompt_of(300), **SAMPLING))
    pair.until(moved, 4)
    pair.move(moved)
    pair.move(moved)
    pair.finish()
    assert pair.answers[moved] == stayed


def test_what_the_destination_has_computed_itself_is_not_sent(pair):
    prompt = prompt_of(300)
    [stayed] = run_unmoved(pair, wish(prompt, **SAMPLING))
    pair.add(wish(prompt, max_tokens=2), at=1)
    pair.finish()
    moved = pair.add(wish(prompt, **SAMPLING))
    pair.until(moved, 3)
    how = pair.move(moved)
    assert (how.sent_blocks, how.cached_blocks) == (1, 2)
    pair.finish()
    assert pair.answers[moved] == stayed


def test_what_was_sent_serves_others_once_it_is_adopted_and_not_before(pair):
    prompt = prompt_of(300)
    moved = pair.add(wish(prompt))
    pair.until(moved, 3)
    source, destination = pair.engines
    seen = pair.look(moved)
    held = destination.moves.hold(pair.wishes[moved], seen.output_token_ids, 310)
    other = pair.add(wish([*prompt[:256], 7, 8, 9], max_tokens=2), at=1)
    assert destination.step()[0].cached_tokens == 0
    pair.answers.pop(other)
    destination.abort([other])
    forget_cached(destination)
    assert source.moves.park(moved) is None
    parked = pair.parked(moved)
    copy_blocks(source, parked.blocks, destination, held.blocks)
    assert destination.moves.adopt(moved, parked) is None
    source.moves.release(moved)
    pair.at[moved] = 1
    third = wish([*prompt[:256], 7, 8, 9], max_tokens=2)
    destination.add(third)
    outputs = {output.request_id: output for output in destination.step()}
    assert outputs[third.request_id].cached_tokens == 256
    destination.abort([third.request_id, moved])
    pair.finish()


def forget_cached(engine) -> None:
    """Lets a prefix cache forget what is not in use."""
    pool = engine._scheduler.kv_cache_manager.block_pool
    engine._scheduler.kv_cache_manager.evict_blocks(
        {block.block_id for block in pool.blocks if block.ref_cnt == 0 and not block.is_null}
    )


def test_others_go_on_at_both_ends(pair):
    """Their logprobs may differ in the last digits: batches do."""
    wishes = [{"seed": 30 + n, "temperature": 1.0, "max_tokens": 40} for n in range(5)]
    prompts = [prompt_of(150 + n, seed=n) for n in range(5)]
    stayed = [run_unmoved(pair, wish(p, **w))[0] for p, w in zip(prompts, wishes, strict=True)]
    names = [
        pair.add(wish(p, **w), at=int(n > 2))
        for n, (p, w) in enumerate(zip(prompts, wishes, strict=True))
    ]
    pair.until(names[0], 5)
    pair.move(names[0], steps=3)
    pair.until(names[4], 20)
    pair.move(names[4], steps=1)
    pair.finish()
    assert [pair.answers[name].tokens for name in names] == [answer.tokens for answer in stayed]


def test_blocks_are_read_in_the_background_while_the_engine_decodes(pair):
    request_id = pair.add(wish(prompt_of(500), max_tokens=100))
    pair.until(request_id, 2)
    source = pair.engines[0]
    complete = pair.look(request_id).complete_blocks
    first, later = (source.kv.new_buffer(len(complete)) for _ in range(2))
    source.kv.gather(complete, first)
    wrong: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            source.kv.gather(complete, later)
            if not bool((first == later).all()):
                wrong.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    pair.finish()
    stop.set()
    reader.join(60)
    assert not reader.is_alive()
    assert wrong == []
    assert bool(first.any())


def test_a_queued_request_moves_without_a_copy(pair):
    prompt = prompt_of(200, seed=9)
    [stayed] = run_unmoved(pair, wish(prompt, **SAMPLING))
    for n in range(MAX_RUNNING):
        pair.add(wish(prompt_of(30, seed=n), max_tokens=60))
    pair.step()
    queued = pair.add(wish(prompt, **SAMPLING))
    pair.step()
    how = pair.move(queued)
    assert how.seen.is_queued
    assert how.parked.blocks == how.seen.complete_blocks == ()
    pair.step(at=1)
    assert len(pair.answers[queued].tokens) == 1
    pair.finish()
    assert pair.answers[queued] == stayed


def test_a_queued_request_that_stays_keeps_its_turn(pair):
    for n in range(MAX_RUNNING):
        pair.add(wish(prompt_of(30, seed=n), max_tokens=20))
    pair.step()
    names = [pair.add(wish(prompt_of(20), arrival_s=float(n))) for n in (1, 2, 3)]
    source = pair.engines[0]
    assert source.moves.park(names[1]) is None
    assert [r.request_id for r in source.load().waiting] == [names[0], names[2], names[1]]
    source.moves.unpark(names[1])
    assert [r.request_id for r in source.load().waiting] == names
    pair.finish()


def test_a_request_that_waits_for_its_grammar_moves_without_it(pair):
    [stayed] = run_unmoved(pair, wish(prompt_of(40), structured_outputs=digits()))
    waiting = pair.add(wish(prompt_of(40), structured_outputs=digits()))
    assert pair.move(waiting).seen.is_queued
    assert not pair.engines[0].load().waiting
    pair.finish()
    assert pair.answers[waiting] == stayed


def digits() -> object:
    from vllm.sampling_params import StructuredOutputsParams

    params = StructuredOutputsParams(regex="[1-9]{20}")
    params._backend = "xgrammar"
    return params


def test_a_request_whose_grammar_is_not_compiled_in_time_stays(pair):
    [stayed] = run_unmoved(pair, wish(prompt_of(40), structured_outputs=digits()))
    moved = pair.add(wish(prompt_of(40), structured_outputs=digits()))
    pair.until(moved, 5)
    source, destination = pair.engines
    tokens = pair.look(moved).output_token_ids
    assert isinstance(destination.moves.hold(pair.wishes[moved], tokens, 45), Held)
    rule = destination._scheduler.requests[moved].structured_output_request
    compiled: Future[object] = Future()
    rule.grammar = compiled
    assert source.moves.park(moved) is None
    refusal = destination.moves.adopt(moved, pair.parked(moved))
    assert refusal == Refusal("refused", "its grammar is not compiled yet")
    compiled.set_exception(ValueError("no such rule"))
    refusal = destination.moves.adopt(moved, pair.parked(moved))
    assert refusal == Refusal("refused", "its grammar does not compile here: no such rule")
    destination.moves.discard(moved)
    source.moves.unpark(moved)
    pair.finish()
    assert pair.answers[moved] == stayed


def crowd() -> list[EngineRequest]:
    """Three requests that fill an engine's 39 blocks, and soon need a 40th; the last one gives
    way."""
    return [
        wish(
            prompt_of(13 * BLOCK_TOKENS - 10, seed=40 + n),
            arrival_s=float(n),
            temperature=1.0,
            seed=50 + n,
            frequency_penalty=0.6,
            max_tokens=40,
        )
        for n in range(3)
    ]


def add_one_by_one(pair: Pair, wishes: list[EngineRequest], at: int) -> list[str]:
    """No prompt is cut into chunks: a seeded one kills vLLM's CPU engine then."""
    for one in wishes:
        pair.add(one, at=at)
        pair.until(one.request_id, 1)
    return [one.request_id for one in wishes]


def test_a_preempted_request_moves_and_computes_its_tokens_again(pair):
    wishes = crowd()
    alone = [run_unmoved(pair, one)[0].tokens for one in wishes]
    names = add_one_by_one(pair, wishes, at=0)
    pair.until(names[0], 14)
    [waiting] = pair.engines[0].load().waiting
    assert waiting.request_id == names[2]
    assert waiting.preemptions == 1
    assert waiting.output_tokens > 5
    how = pair.move(names[2])
    assert how.seen.is_queued
    assert how.parked.output_token_ids == tuple(pair.answers[names[2]].tokens)
    before = pair.engines[1].load().preemptions_total
    pair.finish()
    assert [pair.answers[name].tokens for name in names] == alone
    # It was the source that preempted it.
    assert pair.engines[1].load().preemptions_total == before


def test_a_moved_request_that_is_preempted_afterwards_answers_the_same(pair):
    wishes = crowd()
    alone = [run_unmoved(pair, one)[0].tokens for one in wishes]
    names = add_one_by_one(pair, wishes[:2], at=1)
    names += add_one_by_one(pair, wishes[2:], at=0)
    before = pair.engines[1].load().preemptions_total
    pair.move(names[2])
    pair.until(names[0], 14)
    [waiting] = pair.engines[1].load().waiting
    assert waiting.request_id == names[2]
    assert pair.engines[1].load().preemptions_total == before + 1
    pair.finish()
    assert [pair.answers[name].tokens for name in names] == alone


def test_a_move_that_ends_at_the_source_changes_nothing_there(pair):
    wishes = [wish(prompt_of(150, seed=n), **SAMPLING) for n in range(3)]
    stayed = run_unmoved(pair, *wishes)
    names = [pair.add(one) for one in wishes]
    pair.until(names[1], 4)
    source = pair.engines[0]
    before = source.load()
    for _ in range(3):
        assert source.moves.park(names[1]) is None
        assert source.moves.parked(names[1]).computed_tokens == 153
        during = source.load()
        assert during.used_tokens == before.used_tokens
        assert {r.request_id for r in during.running} == set(names)
        source.moves.unpark(names[1])
        assert source.load() == before
    pair.finish()
    assert [pair.answers[name] for name in names] == stayed


def test_a_parked_request_takes_no_step_and_goes_on_later(pair):
    wishes = [wish(prompt_of(150, seed=n), **SAMPLING) for n in range(2)]
    alone = [run_unmoved(pair, one)[0] for one in wishes]
    names = [pair.add(one) for one in wishes]
    pair.until(names[0], 4)
    source = pair.engines[0]
    assert source.moves.park(names[0]) is None
    pair.until(names[1], 10)
    assert len(pair.answers[names[0]].tokens) == 4
    source.moves.unpark(names[0])
    pair.finish()
    assert [pair.answers[name].tokens for name in names] == [a.tokens for a in alone]


def test_an_engine_with_nothing_but_a_parked_request_has_nothing_to_do(pair):
    [stayed] = run_unmoved(pair, wish(prompt_of(30)))
    request_id = pair.add(wish(prompt_of(30)))
    pair.until(request_id, 4)
    source = pair.engines[0]
    assert source.moves.park(request_id) is None
    assert not source.has_work()
    assert source.step() == []
    source.moves.unpark(request_id)
    pair.finish()
    assert pair.answers[request_id] == stayed


@pytest.mark.parametrize("how", ["abort", "abort_parked", "release"])
def test_a_parked_request_that_ends_frees_its_blocks(pair, how):
    request_id = pair.add(wish(prompt_of(300)))
    pair.until(request_id, 2)
    source = pair.engines[0]
    assert source.moves.park(request_id) is None
    if how == "abort":
        source.abort([request_id])
    elif how == "abort_parked":
        source.moves.abort_parked([request_id, "unknown"])
    else:
        source.moves.release(request_id)
    assert source.load().used_tokens == 0
    assert source.load().running == ()
    assert source.moves.look(request_id).code == "request_finished"
    source.moves.unpark(request_id)
    pair.finish()
    assert len(pair.answers[request_id].tokens) == 2


def test_a_held_request_gives_its_blocks_back_without_a_step(pair):
    destination = pair.engines[1]
    one = wish(prompt_of(300))
    held = destination.moves.hold(one, (1, 2, 3), 303)
    assert isinstance(held, Held)
    assert len(held.blocks) == 3
    assert held.cached_blocks == 0
    load = destination.load()
    assert load.used_tokens == 3 * BLOCK_TOKENS
    assert load.running == load.waiting == ()
    assert not destination.has_work()
    assert destination.moves.look(one.request_id).code == "request_finished"
    destination.abort([one.request_id])
    assert destination.load().used_tokens == 3 * BLOCK_TOKENS
    grown = destination.moves.reserve(one.request_id, 400)
    assert grown.blocks[:3] == held.blocks
    assert len(grown.blocks) == 4
    destination.moves.discard(one.request_id)
    destination.moves.discard(one.request_id)
    assert destination.load().used_tokens == 0
    assert not destination.has_work()


def test_a_held_request_without_tokens_holds_nothing(pair):
    destination = pair.engines[1]
    one = wish(prompt_of(300))
    assert destination.moves.hold(one, (), 0) == Held((), 0)
    assert destination.load().used_tokens == 0
    destination.moves.discard(one.request_id)


def test_no_room_is_a_refusal_with_numbers(pair):
    destination = pair.engines[1]
    big = [wish(prompt_of(1800, seed=n), max_tokens=10) for n in range(3)]
    for one in big[:2]:
        assert isinstance(destination.moves.hold(one, (), 1801), Held)
    refusal = destination.moves.hold(big[2], (), 1801)
    assert refusal == Refusal("no_blocks", "9 blocks are free, 15 are needed")
    small = wish(prompt_of(1000, seed=5))
    held = destination.moves.hold(small, (), 1001)
    assert len(held.blocks) == 8
    refusal = destination.moves.reserve(small.request_id, 1300)
    assert refusal == Refusal("no_blocks", "1 blocks are free, 3 are needed")
    assert len(destination.moves.reserve(small.request_id, 1001).blocks) == 8
    for one in (*big[:2], small):
        destination.moves.discard(one.request_id)


def test_a_held_request_keeps_its_place_in_the_batch(pair):
    destination = pair.engines[1]
    for n in range(MAX_RUNNING - 1):
        pair.add(wish(prompt_of(20, seed=n), max_tokens=30), at=1)
    pair.step()
    moved = pair.add(wish(prompt_of(40), **SAMPLING))
    pair.until(moved, 3)
    seen = pair.look(moved)
    held = destination.moves.hold(pair.wishes[moved], seen.output_token_ids, 50)
    waiting = pair.add(wish(prompt_of(20), max_tokens=4), at=1)
    pair.step()
    assert pair.answers[waiting].tokens == []
    full = destination.moves.hold(wish(prompt_of(9)), (), 10)
    assert full == Refusal("no_blocks", f"all {MAX_RUNNING} places of its batch are taken")
    assert pair.engines[0].moves.park(moved) is None
    parked = pair.parked(moved)
    copy_blocks(pair.engines[0], parked.blocks, destination, held.blocks)
    assert destination.moves.adopt(moved, parked) is None
    pair.engines[0].moves.release(moved)
    pair.at[moved] = 1
    before = len(pair.answers[moved].tokens)
    pair.step(at=1)
    assert len(pair.answers[moved].tokens) == before + 1
    assert pair.answers[waiting].tokens == []
    pair.finish()
    assert len(pair.answers[waiting].tokens) == 4


def test_a_parked_request_keeps_its_place_in_the_batch(pair):
    names = [pair.add(wish(prompt_of(20, seed=n))) for n in range(MAX_RUNNING)]
    pair.step()
    source = pair.engines[0]
    assert source.moves.park(names[0]) is None
    waiting = pair.add(wish(prompt_of(20), max_tokens=4))
    pair.step()
    assert pair.answers[waiting].tokens == []
    source.moves.unpark(names[0])
    pair.finish()
    assert len(pair.answers[waiting].tokens) == 4


def test_an_adopted_request_goes_before_a_long_prompt(pair):
    [stayed] = run_unmoved(pair, wish(prompt_of(40), **SAMPLING))
    moved = pair.add(wish(prompt_of(40), **SAMPLING))
    pair.until(moved, 3)
    destination = pair.engines[1]
    destination._scheduler.max_num_scheduled_tokens, usual = (
        64,
        destination._scheduler.max_num_scheduled_tokens,
    )
    long = pair.add(wish(prompt_of(1000), max_tokens=2), at=1)
    pair.step(at=1)
    refusal = destination.moves.park(long)
    assert refusal == Refusal("refused", "its prompt is being computed")
    assert destination.moves.look(long).is_prefilling
    pair.move(moved)
    pair.step(at=1)
    assert len(pair.answers[moved].tokens) == 4
    destination._scheduler.max_num_scheduled_tokens = usual
    pair.finish()
    assert pair.answers[moved].tokens == stayed.tokens


def test_what_does_not_fit_is_not_adopted_and_stays_held(pair):
    [stayed] = run_unmoved(pair, wish(prompt_of(250), **SAMPLING))
    moved = pair.add(wish(prompt_of(250), **SAMPLING))
    pair.until(moved, 5)
    source, destination = pair.engines
    held = destination.moves.hold(pair.wishes[moved], pair.look(moved).output_token_ids, 254)
    pair.until(moved, 9)
    assert source.moves.park(moved) is None
    parked = pair.parked(moved)
    others = {
        "its output tokens are not": replace(parked, output_token_ids=(0,) * 9),
        "259 of its 259 tokens": replace(parked, computed_tokens=259),
        "blocks for 256 tokens and brings 258": parked,
        "generator is missing": replace(parked, state=b"\x92\x00\xc0", computed_tokens=0),
    }
    for words, wrong in others.items():
        refusal = destination.moves.adopt(moved, wrong)
        assert refusal.code == "refused"
        assert words in refusal.why
        assert destination.moves.reserve(moved, 256) == held
    destination.moves.discard(moved)
    assert destination.load().used_tokens == 0
    source.moves.unpark(moved)
    pair.finish()
    assert pair.answers[moved] == stayed


@pytest.mark.parametrize(
    ("one", "words"),
    [
        pytest.param(
            lambda: replace(wish(prompt_of(9)), payload=b"x"),
            "not a request of this vLLM",
            id="garbage",
        ),
        pytest.param(
            lambda: wish(prompt_of(2000), max_tokens=100),
            f"it may get 2100 tokens long, the limit is {MAX_MODEL_LEN}",
            id="too-long",
        ),
    ],
)
def test_what_can_never_run_is_not_held(pair, one, words):
    refusal = pair.engines[1].moves.hold(one(), (), 10)
    assert refusal.code == "refused"
    assert words in refusal.why


def test_a_request_is_not_held_where_it_is_already(pair):
    request_id = pair.add(wish(prompt_of(20)))
    refusal = pair.engines[0].moves.hold(pair.wishes[request_id], (), 30)
    assert refusal == Refusal("refused", "the request is here already")
    pair.finish()
    assert pair.engines[0].moves.look(request_id).code == "request_finished"


def test_an_adopted_request_is_reported_with_its_class(pair):
    moved = pair.add(wish(prompt_of(20), priority=PriorityClass.HIGH))
    pair.until(moved, 2)
    pair.move(moved)
    [load] = pair.engines[1].load().running
    assert load.priority_class is PriorityClass.HIGH
    assert load.output_tokens == 2
    assert pair.engines[0].load().running == ()
    pair.finish()


def test_the_probe_is_the_same_request_every_time(pair):
    first, second = (
        engine.moves.probe(f"probe-{n}", 30, 5) for n, engine in enumerate(pair.engines)
    )
    for number, one in enumerate((first, second)):
        pair.add(one, at=number)
    pair.finish()
    answers = [pair.answers[one.request_id] for one in (first, second)]
    assert answers[0] == answers[1]
    assert len(answers[0].tokens) == 5
    assert (first.prompt_tokens, first.max_tokens, first.min_tokens) == (30, 5, 5)


def test_a_parked_state_is_the_same_when_asked_twice(pair):
    moved = pair.add(wish(prompt_of(20), **SAMPLING))
    pair.until(moved, 2)
    source = pair.engines[0]
    assert source.moves.park(moved) is None
    first = source.moves.parked(moved)
    assert isinstance(first, Parked)
    assert source.moves.parked(moved) == first
    source.moves.unpark(moved)
    pair.finish()


def test_a_vllm_without_what_is_used_here_does_not_start(engines, monkeypatch):
    from engine_pool import vllm_hooks

    vllm_hooks.check_version()
    vllm_hooks.check_parts(engines[0]._core)
    monkeypatch.setattr(vllm_hooks, "_PARTS", ("scheduler.running", "scheduler.gone"))
    with pytest.raises(EngineFailed, match=r"has no EngineCore\.scheduler\.gone"):
        vllm_hooks.check_parts(engines[0]._core)
    monkeypatch.setattr(vllm_hooks, "_HOOKS", (("vllm.v1.request", "Request.gone"),))
    with pytest.raises(EngineFailed, match=r"has no vllm\.v1\.request\.Request\.gone"):
        vllm_hooks.check_version()


def test_an_engine_whose_kv_cannot_move_says_so_and_serves(engines, monkeypatch):
    """As with speculative decoding, several kinds of KV cache and the like."""
    from engine_pool.vllm_shape import why_engine_cannot_move

    engine = engines[0]
    assert why_engine_cannot_move(engine._core) == ""
    monkeypatch.setattr(engine._core.vllm_config.parallel_config, "pipeline_parallel_size", 2)
    why = why_engine_cannot_move(engine._core)
    assert why == "the engine uses pipeline parallelism; its requests do not move"
    monkeypatch.undo()
    monkeypatch.setattr(engine._scheduler, "hash_block_size", 16)
    assert "mixed block sizes" in why_engine_cannot_move(engine._core)
    monkeypatch.setattr(engine.moves, "_why_not", why)
    one = wish(prompt_of(20), max_tokens=3)
    assert engine.moves.hold(one, (), 0) == Refusal("refused", why)
    engine.add(one)
    engine.step()
    assert engine.moves.look(one.request_id) == Refusal("refused", why)
    assert engine.moves.park(one.request_id) == Refusal("refused", why)
    run_dry(engine)
