"""An engine in virtual time: its times are the cost model's, its blocks are never lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.simulator.sim_request import Place, SimRequest
from engine_pool.types import PriorityClass
from tests.simulator.bench import COSTS, Bench, limits, request


def test_a_lone_request_takes_as_long_as_the_costs_say() -> None:
    bench, r = Bench(), request(0, 100, 5)
    bench.add(r)
    bench.run()
    prefill_ms = COSTS.prefill_ms([100])
    decode_ms = sum(COSTS.decode_ms(1, tokens) for tokens in (101, 102, 103, 104))
    assert r.first_token_s is not None
    assert r.finish_s is not None
    assert r.first_token_s * 1000 == pytest.approx(prefill_ms)
    assert r.finish_s * 1000 == pytest.approx(prefill_ms + decode_ms)
    assert r.tokens == 105


def test_an_answer_of_one_token_ends_with_its_prefill() -> None:
    bench, r = Bench(), request(0, 40, 1)
    bench.add(r)
    bench.run()
    assert r.finish_s == r.first_token_s == pytest.approx(COSTS.prefill_ms([40]) / 1000)


def test_a_prefill_stalls_those_that_decode() -> None:
    bench, first, second = Bench(), request(0, 16, 3), request(1, 1000, 2)
    bench.add(first)
    bench.run(until_s=COSTS.prefill_ms([16]) / 1000 + 0.001)
    bench.add(second)
    bench.run()
    alone_ms = COSTS.prefill_ms([16]) + COSTS.decode_ms(1, 17)
    stalled_ms = alone_ms + COSTS.prefill_ms([1000]) + COSTS.decode_ms(2, 18 + 1001)
    assert first.finish_s == second.finish_s == pytest.approx(stalled_ms / 1000)


def test_a_stalled_request_would_move_with_the_blocks_that_it_holds() -> None:
    bench = Bench()
    bench.add(request(0, 15, 3), request(1, 1000, 2))
    bench.run(until_s=COSTS.prefill_ms([15]) / 1000 + 0.001)
    (stalled,) = bench.engine.candidates()
    assert (stalled.kv_tokens, stalled.need_tokens) == (16, 32)
    bench.run(until_s=COSTS.prefill_ms([15]) / 1000 + COSTS.prefill_ms([1000]) / 1000 + 0.001)
    assert bench.engine.candidates()[0].kv_tokens == 32


def test_prompts_that_wait_together_are_computed_in_one_step() -> None:
    bench, busy = Bench(limits(max_prefill_tokens=300)), request(0, 16, 2)
    bench.add(busy)
    together = [request(1, 100, 2), request(2, 200, 2), request(3, 50, 2)]
    bench.add(*together)
    bench.run()
    first, second, third = (r.first_token_s for r in together)
    assert first == second == pytest.approx((COSTS.prefill_ms([16, 100, 200]) + 5.58) / 1000)
    assert third == pytest.approx((first or 0) + COSTS.prefill_ms([50]) / 1000)


def test_a_prompt_over_the_bound_has_a_step_of_its_own() -> None:
    bench, r = Bench(limits(max_prefill_tokens=100)), request(0, 500, 2)
    bench.add(r)
    bench.run()
    assert r.first_token_s == pytest.approx(COSTS.prefill_ms([500]) / 1000)


def test_a_preempted_request_is_computed_again_with_its_output() -> None:
    # Ten blocks: two requests of five, and no sixth for either.
    bench, first, second = Bench(limits(10)), request(0, 64, 40), request(1, 64, 40)
    bench.add(first, second)
    bench.run(until_s=1.2)
    assert bench.preempted_in_order == [second]
    assert second.place is Place.QUEUED
    assert second.tokens == 80
    bench.run()
    assert bench.finished_in_order == [first, second]
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert first.finish_s is not None
    assert second.finish_s is not None
    again_ms = COSTS.prefill_ms([80]) + sum(COSTS.decode_ms(1, n) for n in range(81, 104))
    assert second.finish_s - first.finish_s == pytest.approx(again_ms / 1000)
    assert second.lost_s > COSTS.prefill_ms([80]) / 1000
    assert second.tokens == 104


def test_the_lowest_class_is_preempted_first() -> None:
    bench = Bench(limits(10))
    low = request(0, 64, 40, of=PriorityClass.LOW)
    high = request(1, 64, 40, of=PriorityClass.HIGH)
    bench.add(low, high)
    bench.run()
    assert bench.preempted_in_order == [low]
    assert bench.finished_in_order == [high, low]


def test_a_higher_class_passes_those_that_wait() -> None:
    bench = Bench(limits(max_running=1))
    running, normal = request(0, 16, 4), request(1, 16, 4)
    high = request(2, 16, 4, of=PriorityClass.HIGH)
    bench.add(running, normal, high)
    bench.run()
    assert bench.finished_in_order == [running, high, normal]


def test_the_watermark_stays_free_at_admission() -> None:
    bench = Bench(limits(100, watermark=0.1))
    first, second = request(0, 16 * 80, 30), request(1, 16 * 10 - 1, 2)
    bench.add(first, second)
    bench.run(until_s=0.5)
    assert (first.place, second.place) == (Place.DECODING, Place.QUEUED)
    assert bench.engine.blocked_tokens == 160


def test_a_copy_makes_decode_steps_longer() -> None:
    bench, r = Bench(limits(copy_slowdown=0.023)), request(0, 16, 11)
    bench.engine.begin_copy(0.0)
    bench.add(r)
    bench.run()
    decode_ms = sum(COSTS.decode_ms(1, tokens) for tokens in range(17, 27))
    assert r.finish_s == pytest.approx((COSTS.prefill_ms([16]) + decode_ms * 1.023) / 1000)


def _outcome(requests: list[SimRequest]) -> list[object]:
    return [(r.index, r.first_token_s, r.finish_s, r.preemptions, r.lost_s) for r in requests]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 150)), min_size=1, max_size=8),
    looks=st.lists(st.floats(0.001, 20), max_size=30),
)
def test_looking_changes_nothing(lengths: list[tuple[int, int]], looks: list[float]) -> None:
    seen, unseen = Bench(limits(30)), Bench(limits(30))
    for bench in (seen, unseen):
        bench.add(*(request(i, p, o) for i, (p, o) in enumerate(lengths)))
    for at_s in sorted(looks):
        seen.run(until_s=at_s)
        seen.engine.check_integrity()
    seen.run()
    unseen.run()
    assert _outcome(seen.finished_in_order) == _outcome(unseen.finished_in_order)
    assert len(seen.finished_in_order) == len(lengths)
    assert seen.engine.is_empty
