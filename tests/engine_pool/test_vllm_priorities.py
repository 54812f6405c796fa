"""Classes, fair shares and ageing in real engines: who waits, who runs, who makes room."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine_pool import vllm_adapter
from engine_pool.config import PoolConfig
from engine_pool.engine_spec import EngineSpec
from engine_pool.errors import EngineRefused
from engine_pool.ports import EngineRequest
from engine_pool.types import InstanceName, PriorityClass
from migration.ports import Held, Refusal
from tests.engine_pool.vllm_pair import (
    KV_CACHE_GIB,
    MAX_RUNNING,
    Pair,
    copy_blocks,
    forget_prefixes,
    prompt_of,
    run_unmoved,
    wish,
)
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.slow

HIGH, NORMAL, LOW = PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW
AGEING_S = 100.0
BLOCKS = 39
"""Of 128 tokens, for requests."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


def make(name: str, clock: Clock) -> vllm_adapter.VllmEngine:
    config = PoolConfig(kv_cache_gib=KV_CACHE_GIB, max_running=MAX_RUNNING, ageing_s=AGEING_S)
    spec = EngineSpec(InstanceName(name), "a", config, str(tiny_model()), 1, 0)
    return vllm_adapter.VllmEngine(spec, clock)


@pytest.fixture(scope="module")
def engines(clock) -> Iterator[tuple[vllm_adapter.VllmEngine, vllm_adapter.VllmEngine]]:
    both = make("i-01", clock), make("i-02", clock)
    yield both
    for engine in both:
        engine.close()


@pytest.fixture(scope="module")
def asynchronous(clock) -> Iterator[vllm_adapter.VllmEngine]:
    """An engine that schedules a step while the one before it is still running."""
    make_config = vllm_adapter._vllm_config

    def make_asynchronous(spec, *, is_cpu):
        config = make_config(spec, is_cpu=is_cpu)
        config.scheduler_config.async_scheduling = True
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_adapter, "_vllm_config", make_asynchronous)
        engine = make("i-03", clock)
    yield engine
    engine.close()


@pytest.fixture
def pair(engines) -> Iterator[Pair]:
    yield from clean(Pair(*engines))


@pytest.fixture(params=["one step at a time", "a step ahead"])
def kind(request, engines) -> Iterator[Pair]:
    """Both kinds of engine, as the first of a pair."""
    ahead = request.param == "a step ahead"
    first = request.getfixturevalue("asynchronous") if ahead else engines[0]
    yield from clean(Pair(first, engines[1]))


def clean(pair: Pair) -> Iterator[Pair]:
    forget_prefixes(pair)
    yield pair
    for engine in pair.engines:
        for request_id in list(engine._scheduler.requests):
            engine.moves.discard(request_id)
        engine.abort(list(engine._scheduler.requests))
        while engine.has_work():
            engine.step()
        assert engine.load().used_tokens == 0
        assert not engine._queue._turns._entries
        assert not engine._queue._running


def of(
    tenant: str, prompt: int = 100, *, weight: float = 1.0, seed: int = 1, **more
) -> EngineRequest:
    """Returns a tenant's request; `seed` makes its prompt."""
    return replace(wish(prompt_of(prompt, seed), **more), tenant=tenant, weight=weight)


def running(pair: Pair, at: int = 0) -> set[str]:
    return {str(r.request_id) for r in pair.engines[at].load().running}


def queue(pair: Pair, at: int = 0) -> list[str]:
    return [str(r.request_id) for r in pair.engines[at].load().waiting]


def fill(pair: Pair, priority: PriorityClass = LOW, at: int = 0, **more) -> list[str]:
    """Fills an engine's batch; returns the requests, the last come last."""
    usual = {"prompt": 150, "max_tokens": 60} | more
    wishes = [
        of("t", seed=n + 1, priority=priority, arrival_s=float(n), **usual)
        for n in range(MAX_RUNNING)
    ]
    names = [pair.add(one, at) for one in wishes]
    pair.step(at)
    assert running(pair, at) == set(names)
    return names


def test_the_queue_is_ordered_by_class_then_by_tenants_turns(pair):
    fill(pair, HIGH)
    heavy = [pair.add(of("heavy", priority=NORMAL)) for _ in range(2)]
    low = pair.add(of("other", priority=LOW))
    light = pair.add(of("light", priority=NORMAL, arrival_s=9))
    high = pair.add(of("other", priority=HIGH, arrival_s=9))
    assert queue(pair) == [high, heavy[0], light, heavy[1], low]
    before = pair.engines[0].load().preemptions_total
    pair.finish()
    assert pair.engines[0].load().preemptions_total == before


def test_a_high_request_gets_a_place_in_the_next_step_of_a_full_batch(kind):
    names = fill(kind)
    before = kind.engines[0].load().preemptions_total
    high = kind.add(of("t", priority=HIGH, arrival_s=9))
    kind.step(0)
    assert running(kind) == {*names[:-1], high}
    assert queue(kind) == [names[-1]]
    for _ in range(3):
        kind.step(0)
    assert kind.engines[0].load().preemptions_total == before + 1
    assert running(kind) == {*names[:-1], high}


@pytest.mark.parametrize("moment", [1, 2, 7, 31])
def test_whoever_made_room_answers_as_if_undisturbed(kind, moment):
    many = [
        of("t", 150, seed=n + 1, priority=LOW, arrival_s=float(n), max_tokens=60)
        for n in range(MAX_RUNNING)
    ]
    undisturbed = [answer.tokens for answer in run_unmoved(kind, *many)]
    names = fill(kind)
    kind.until(names[0], moment)
    for n in range(2):
        kind.add(of("t", 300, seed=7 + n, priority=HIGH, arrival_s=9, max_tokens=20))
    kind.step(0)
    assert queue(kind) == names[2:]
    kind.finish()
    assert [kind.answers[name].tokens for name in names] == undisturbed
    assert {kind.answers[name].finish_reason for name in names} == {"length"}


def test_a_high_request_gets_memory_that_lower_ones_hold(kind):
    lows = [
        kind.add(of("t", 1500, seed=n, priority=LOW, arrival_s=float(n), max_tokens=20))
        for n in range(3)
    ]
    kind.until(lows[-1], 1)
    assert kind.engines[0].load().used_tokens >= (BLOCKS - 5) * 128
    high = kind.add(of("t", 1300, seed=9, priority=HIGH, arrival_s=9, max_tokens=9))
    for _ in range(2):  # blocks of a step in flight come back after it
        kind.step(0)
    assert running(kind) == {lows[0], lows[1], high}
    kind.finish()
    assert all(kind.answers[name].finish_reason == "length" for name in (*lows, high))


@pytest.fixture
def short_steps(kind) -> Iterator[None]:
    """Steps of 128 tokens: prompts are computed in chunks."""
    scheduler = kind.engines[0]._scheduler
    usual, scheduler.max_num_scheduled_tokens = scheduler.max_num_scheduled_tokens, 128
    yield
    scheduler.max_num_scheduled_tokens = usual


def test_a_long_prompt_of_a_lower_class_does_not_hold_a_high_request_up(kind, short_steps):
    long = of("t", 1500, priority=LOW, max_tokens=5)
    [undisturbed] = run_unmoved(kind, long)
    low = kind.add(of("t", 1500, priority=LOW, max_tokens=5))
    kind.step(0)
    high = kind.add(of("t", 60, seed=2, priority=HIGH, arrival_s=9))
    larger = kind.add(of("t", 700, seed=3, priority=HIGH, arrival_s=10))
    for _ in range(2):  # its token may be in flight still
        kind.step(0)
    assert kind.answers[high].tokens
    kind.until(larger, 1)
    assert not kind.answers[low].tokens
    kind.finish()
    assert kind.answers[low].tokens == undisturbed.tokens
    assert kind.engines[0]._scheduler.scheduler_config.long_prefill_token_threshold == 0


def test_nobody_is_preempted_where_that_would_not_help(pair):
    big = pair.add(of("t", 1900, priority=HIGH, max_tokens=90))
    others = [
        pair.add(of("t", 1900, seed=2, priority=HIGH, max_tokens=90)),
        pair.add(of("t", 200, seed=3, priority=LOW, max_tokens=60)),
    ]
    pair.until(others[-1], 1)
    assert running(pair) == {big, *others}
    pair.add(of("t", 1900, seed=4, priority=HIGH, arrival_s=9, max_tokens=5))
    for _ in range(3):
        pair.step(0)
    assert running(pair) == {big, *others}


def test_a_prefix_that_others_keep_needs_no_room(pair):
    first = pair.add(of("t", 1500, priority=HIGH, max_tokens=60))
    others = [
        pair.add(of("t", 1500, seed=n, priority=LOW, arrival_s=n, max_tokens=60)) for n in (2, 3)
    ]
    pair.until(others[-1], 1)
    assert pair.engines[0].load().used_tokens >= (BLOCKS - 5) * 128
    again = pair.add(of("t", 1500, priority=HIGH, arrival_s=9, max_tokens=5))
    pair.step(0)
    assert running(pair) == {first, *others, again}


def test_a_request_makes_room_three_times_and_no_more(pair):
    names = fill(pair, max_tokens=200)
    for n in range(5):
        high = pair.add(of("t", priority=HIGH, arrival_s=9, max_tokens=2))
        for _ in range(30):
            pair.step(0)
            if not queue(pair):
                break
        assert pair.answers[high].finish_reason == "length", n
    preempted = {r.request_id: r.preemptions for r in pair.engines[0].load().running}
    assert preempted == {names[0]: 0, names[1]: 0, names[2]: 2, names[3]: 3}


def test_a_request_that_a_move_copies_does_not_make_room(pair, clock):
    names = fill(pair)
    last = names[-1]
    seen = pair.look(last)
    high = pair.add(of("t", priority=HIGH, arrival_s=9))
    pair.step(0)
    assert running(pair) == {names[0], names[1], last, high}
    assert pair.look(last).preemptions == seen.preemptions
    # A move that gave up says nothing; after a while the request is like any other.
    clock.now_s += PoolConfig().migration_stage_timeout_s
    another = pair.add(of("t", priority=HIGH, arrival_s=10))
    pair.step(0)
    assert running(pair) == {names[0], names[1], high, another}


def test_parked_and_held_requests_keep_their_places(pair):
    names = fill(pair)
    source, destination = pair.engines
    assert source.moves.park(names[-1]) is None
    there = fill(pair, at=1)
    high = pair.add(of("t", priority=HIGH, arrival_s=9))
    pair.step(0)
    assert running(pair) == {names[0], names[1], names[3], high}
    source.moves.unpark(names[-1])
    destination.abort([there[0]])
    held = destination.moves.hold(pair.wishes[names[0]], (), 128)
    assert isinstance(held, Held)
    pair.add(of("t", priority=HIGH, arrival_s=9), at=1)
    pair.step(1)
    assert queue(pair, 1) == [there[-1]]
    assert destination.moves.holds(names[0])
    destination.moves.discard(names[0])
    pair.finish()


def test_tenants_of_a_class_share_it_however_much_they_send(pair):
    produced: Counter[str] = Counter()
    tenants = {}
    for n in range(120):
        tenants[pair.add(of("heavy", 20, seed=n, max_tokens=8))] = "heavy"
    for n in range(15):
        name = pair.add(of("light", 20, seed=n, max_tokens=8, arrival_s=9))
        tenants[name] = "light"
    while produced.total() < 200:
        for output in pair.engines[0].step():
            produced[tenants[output.request_id]] += len(output.token_ids)
    assert abs(produced["heavy"] - produced["light"]) <= MAX_RUNNING * 8
    pair.engines[0].abort(list(tenants))


def test_a_weight_that_no_tenant_has_is_refused(pair):
    with pytest.raises(EngineRefused, match="weight -1: expected a number"):
        pair.add(of("t", weight=-1))
    assert not pair.engines[0].has_work()


def test_a_low_request_that_waited_long_enough_runs_and_is_not_put_out_again(pair, clock):
    # They fill the batch again and again; two always wait.
    def keep_busy(seconds: int) -> None:
        for _ in range(seconds):
            clock.now_s += 1
            while len(queue(pair)) < 3:
                pair.add(of("t", 20, priority=HIGH, arrival_s=clock.now_s, max_tokens=6))
            pair.step(0)

    fill(pair, HIGH, prompt=20, max_tokens=6)
    low = pair.add(of("t", 20, seed=5, priority=LOW, max_tokens=40))
    keep_busy(int(1.9 * AGEING_S))
    assert low in queue(pair)
    keep_busy(int(0.2 * AGEING_S))
    assert pair.answers[low].tokens
    keep_busy(40)
    assert pair.answers[low].finish_reason == "length"
    pair.finish()


def test_a_waiting_request_that_moves_takes_its_class_and_a_turn_along(pair):
    for at in (0, 1):
        fill(pair, HIGH, at=at)
    other = [pair.add(of("a", arrival_s=n), at=1) for n in (1.0, 2.0)]
    low = pair.add(of("a", priority=LOW), at=1)
    moved = pair.add(of("b", arrival_s=3, max_tokens=5))
    pair.move(moved)
    assert queue(pair, 0) == []
    assert queue(pair, 1) == [other[0], moved, other[1], low]
    pair.finish()
    assert len(pair.answers[moved].tokens) == 5


def test_a_request_that_was_preempted_moves_while_it_waits(pair):
    many = [
        of("t", 150, seed=n + 1, priority=LOW, arrival_s=float(n), max_tokens=60)
        for n in range(MAX_RUNNING)
    ]
    undisturbed = [answer.tokens for answer in run_unmoved(pair, *many)]
    names = fill(pair)
    pair.until(names[0], 9)
    pair.add(of("t", 300, seed=9, priority=HIGH, arrival_s=9))
    pair.step(0)
    assert queue(pair) == [names[-1]]
    pair.move(names[-1])
    pair.step(1)
    assert running(pair, 1) == {names[-1]}
    pair.finish()
    assert [pair.answers[name].tokens for name in names] == undisturbed


def test_a_running_request_that_moved_makes_room_like_any_other(pair):
    [undisturbed] = run_unmoved(pair, of("t", 300, seed=8, priority=LOW, max_tokens=40))
    there = [
        pair.add(of("t", seed=n + 1, priority=LOW, arrival_s=float(n), max_tokens=60), at=1)
        for n in range(MAX_RUNNING - 1)
    ]
    moved = pair.add(of("t", 300, seed=8, priority=LOW, arrival_s=8, max_tokens=40))
    pair.until(moved, 5)
    pair.move(moved, steps=2)
    pair.step(1)
    assert running(pair, 1) == {*there, moved}
    high = pair.add(of("t", priority=HIGH, arrival_s=9), at=1)
    pair.step(1)
    assert running(pair, 1) == {*there, high}
    pair.finish()
    assert pair.answers[moved].tokens == undisturbed.tokens


def test_a_source_that_lets_go_of_a_request_charges_what_was_produced(pair):
    source, destination = pair.engines
    moved = pair.add(of("b", 200, max_tokens=300))
    pair.until(moved, 10)
    parked_at = pair.look(moved)
    held = destination.moves.hold(pair.wishes[moved], parked_at.output_token_ids, 256)
    assert isinstance(held, Held)
    source.moves.park(moved)
    parked = pair.parked(moved)
    copy_blocks(source, parked.blocks, destination, held.blocks[: len(parked.blocks)])
    pair.adopt(moved, parked)
    source.moves.release(moved)
    pair.at[moved] = 1
    # Its next request there goes behind 210 tokens, not behind what was expected.
    fair = source._queue._turns._fair
    after = pair.add(of("b", 50, max_tokens=5))
    fresh = pair.add(of("c", 50, max_tokens=5))
    assert fair.start_tag(after) - fair.start_tag(fresh) == 210
    pair.finish()


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_in_whatever_order_no_answer_changes(kind, clock, seed):
    """Classes, tenants, waiting and moves at random, more requests than the engines take."""
    chance = random.Random(seed)
    wishes = [
        of(
            chance.choice("ab"),
            chance.randint(20, 1200),
            seed=n,
            priority=chance.choice(list(PriorityClass)),
            arrival_s=float(n),
            max_tokens=40,
        )
        for n in range(14)
    ]
    alone = [run_unmoved(kind, one)[0].tokens for one in wishes]
    before = preemptions(kind)
    names, moves = [], 0
    for one in wishes:
        names.append(kind.add(one, at=chance.randrange(2)))
        for _ in range(chance.randint(1, 5)):
            clock.now_s += chance.choice((0, 0, 1, 40))
            kind.step()
            preemptions(kind)  # counted while they are there
            moves += move_at_random(kind, chance, chance.choice(names))
    kind.finish()
    assert [kind.answers[name].tokens for name in names] == alone
    assert moves > 1
    assert preemptions(kind) > before


def preemptions(pair: Pair) -> int:
    return sum(engine.load().preemptions_total for engine in pair.engines)


def move_at_random(pair: Pair, chance: random.Random, name: str) -> bool:
    """Moves a request now and then, if it can be moved. Returns whether it did."""
    if chance.random() < 0.5:
        return False
    at = pair.at[name]
    destination = pair.engines[1 - at]
    seen = pair.engines[at].moves.look(name)
    if isinstance(seen, Refusal) or seen.is_prefilling or len(seen.output_token_ids) > 37:
        return False
    tokens = 0 if seen.is_queued else seen.computed_tokens + 2
    if isinstance(
        destination.moves.hold(pair.wishes[name], seen.output_token_ids, tokens), Refusal
    ):
        return False
    destination.moves.discard(name)
    pair.move(name)
    return True
