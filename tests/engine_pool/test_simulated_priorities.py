"""Classes, fair shares and ageing in a simulated engine."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_pool.class_rules import ClassRule
from engine_pool.config import PoolConfig
from engine_pool.errors import EngineRefused
from engine_pool.ports import EngineRequest
from engine_pool.simulator.live_engine import SimulatedEngine, SimulatedLimits
from engine_pool.turns import TurnRules
from engine_pool.types import PriorityClass
from migration.ports import Held, Parked
from tests.engine_pool.make import NOW_UNIX_S, request
from tests.engine_pool.test_simulated_engine import TEXT, run_to_end, tokens

HIGH, NORMAL, LOW = PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW
AGEING_S = 100.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def engine(
    clock: Clock | None = None, *, blocks: int = 200, max_running: int = 3, **settings: float
) -> SimulatedEngine:
    limits = SimulatedLimits(capacity_blocks=blocks, max_running=max_running, max_model_len=2000)
    config = replace(PoolConfig(ageing_s=AGEING_S), **settings)
    return SimulatedEngine(
        TEXT, limits, sleep=lambda _: None, rules=TurnRules.of(config), clock=clock or Clock()
    )


def wish(
    name: str,
    priority: PriorityClass = NORMAL,
    *,
    tenant: str = "t",
    prompt: int = 20,
    output: int = 200,
    came: float = 0.0,
    weight: float = 1.0,
) -> EngineRequest:
    one = request(
        name,
        prompt_tokens=prompt,
        max_tokens=output,
        min_tokens=output,
        priority=priority,
        arrival_unix_s=NOW_UNIX_S + came,
    )
    return replace(one, tenant=tenant, weight=weight)


def running(eng: SimulatedEngine) -> set[str]:
    return {str(r.request_id) for r in eng.load().running}


def queue(eng: SimulatedEngine) -> list[str]:
    return [str(r.request_id) for r in eng.load().waiting]


def full_of(eng: SimulatedEngine, priority: PriorityClass, number: int = 3) -> None:
    for n in range(number):
        eng.add(wish(f"{priority}-{n}", priority, came=n))
    eng.step()
    assert len(running(eng)) == number


def test_a_high_request_gets_a_place_in_the_next_step_of_a_full_batch():
    eng = engine()
    full_of(eng, LOW)
    eng.add(wish("high", HIGH, came=9))
    eng.step()
    assert running(eng) == {"low-0", "low-1", "high"}
    assert queue(eng) == ["low-2"]
    assert eng.load().preemptions_total == 1
    eng.step()
    assert eng.load().preemptions_total == 1


def test_whoever_made_room_answers_as_if_undisturbed():
    alone = engine()
    alone.add(wish("low-2", LOW))
    undisturbed = tokens(run_to_end(alone)["low-2"])
    eng = engine()
    full_of(eng, LOW)
    said = {"low-2": list(undisturbed[:1])}
    eng.add(wish("high", HIGH))
    for name, outputs in run_to_end(eng).items():
        said.setdefault(name, []).extend(tokens(outputs))
    assert said["low-2"] == undisturbed
    assert eng.load().preemptions_total == 1


def test_a_high_request_gets_memory_that_lower_ones_hold():
    eng = engine(blocks=40, max_running=8)
    for n in range(3):
        eng.add(wish(f"low-{n}", LOW, prompt=190, output=50, came=n))
    eng.step()
    eng.add(wish("high", HIGH, prompt=200, output=20, came=9))
    eng.step()
    assert running(eng) == {"low-0", "low-1", "high"}


def test_nobody_is_preempted_for_its_own_class():
    eng = engine()
    full_of(eng, HIGH)
    eng.add(wish("another", HIGH, came=9))
    for _ in range(5):
        eng.step()
    assert queue(eng) == ["another"]


def test_a_request_makes_room_so_often_and_no_more():
    eng = engine(max_running=1, class_preemptions_max=2)
    eng.add(wish("low", LOW, output=100))
    for n in range(4):
        eng.step()
        eng.add(wish(f"high-{n}", HIGH, output=2, came=n))
        while "high" in str(queue(eng)) and running(eng) != {"low"}:
            eng.step()
        eng.step()
        while "low" not in running(eng):
            eng.step()
    assert eng.load().running[0].preemptions == 2
    run_to_end(eng)


def test_a_request_that_a_move_copies_does_not_make_room():
    clock = Clock()
    eng = engine(clock)
    full_of(eng, LOW)
    eng.moves.look("low-2")
    eng.add(wish("high", HIGH, came=9))
    eng.step()
    assert running(eng) == {"low-0", "low-2", "high"}
    # A move that gave up says nothing; after a while the request is like any other.
    clock.now_s = PoolConfig().migration_stage_timeout_s
    eng.add(wish("high-2", HIGH, came=10))
    eng.step()
    assert running(eng) == {"low-0", "high", "high-2"}


def test_a_parked_request_keeps_its_place():
    eng = engine()
    full_of(eng, LOW)
    assert eng.moves.park("low-2") is None
    eng.add(wish("high", HIGH, came=9))
    eng.step()
    assert queue(eng) == ["low-1"]
    eng.moves.unpark("low-2")
    eng.step()
    assert running(eng) == {"low-0", "low-2", "high"}
    run_to_end(eng)


def serve_in_turn(eng: SimulatedEngine, most_tokens: int) -> Counter[str]:
    """Runs an engine until so many tokens were produced; returns them by tenant (first letter)."""
    produced: Counter[str] = Counter()
    while produced.total() < most_tokens:
        for output in eng.step():
            produced[output.request_id[0]] += len(output.token_ids)
    return produced


def test_tenants_of_a_class_share_it_however_much_they_send():
    eng = engine(max_running=2)
    for n in range(300):
        eng.add(wish(f"heavy-{n}", tenant="heavy", output=20, came=n / 1000))
    for n in range(20):
        eng.add(wish(f"light-{n}", tenant="light", output=20, came=1))
    produced = serve_in_turn(eng, 700)
    assert abs(produced["h"] - produced["l"]) <= 60


def test_a_heavier_tenant_gets_its_share():
    eng = engine(max_running=2)
    for n in range(60):
        eng.add(wish(f"gold-{n}", tenant="gold", output=20, weight=3))
        eng.add(wish(f"plain-{n}", tenant="plain", output=20))
    produced = serve_in_turn(eng, 800)
    assert 2.5 <= produced["g"] / produced["p"] <= 3.5


def test_a_weight_that_no_tenant_has_is_refused():
    eng = engine()
    with pytest.raises(EngineRefused, match="weight 0: expected a number"):
        eng.add(wish("a", weight=0))
    assert not eng.has_work()


def keep_high_busy(eng: SimulatedEngine, clock: Clock, seconds: float) -> None:
    """Serves, second by second, an engine that always has a high request waiting."""
    for _ in range(int(seconds)):
        clock.now_s += 1
        while len([n for n in queue(eng) if n.startswith("high")]) < 2:
            name = f"high-{clock.now_s}-{len(queue(eng))}"
            eng.add(wish(name, HIGH, output=5, came=clock.now_s))
        eng.step()


@pytest.mark.parametrize(
    ("ageing_s", "has_run"),
    [pytest.param(AGEING_S, True, id="on"), pytest.param(0.0, False, id="off")],
)
def test_a_low_request_that_waited_long_enough_runs(ageing_s, has_run):
    clock = Clock()
    eng = engine(clock, max_running=1, ageing_s=ageing_s)
    keep_high_busy(eng, clock, 5)
    eng.add(wish("low", LOW, output=150))
    keep_high_busy(eng, clock, 150)
    assert "low" not in running(eng)
    keep_high_busy(eng, clock, 70)
    assert ("low" in running(eng)) is has_run
    keep_high_busy(eng, clock, 20)
    assert ("low" in running(eng)) is has_run, "a high one does not take its place again"


def test_the_report_shows_the_queue_in_the_order_in_which_it_is_served():
    clock = Clock()
    eng = engine(clock, max_running=1)
    eng.add(wish("first", HIGH, output=2))
    eng.step()
    for n, tenant in enumerate("aab"):
        eng.add(wish(f"{tenant}{n}", tenant=tenant, output=2))
    eng.add(wish("low", LOW, output=2))
    eng.add(wish("high", HIGH, output=2))
    reported = queue(eng)
    assert reported == ["high", "a0", "b2", "a1", "low"]
    served: list[str] = []
    while eng.has_work():
        served += [o.request_id for o in eng.step() if o.finish_reason]
    assert served == ["first", *reported]


def move(source: SimulatedEngine, destination: SimulatedEngine, one: EngineRequest) -> None:
    seen = source.moves.look(one.request_id)
    room = 0 if seen.is_queued else seen.computed_tokens + 1
    held = destination.moves.hold(one, seen.output_token_ids, room)
    assert isinstance(held, Held), held
    assert source.moves.park(one.request_id) is None
    parked = source.moves.parked(one.request_id)
    assert isinstance(parked, Parked)
    assert destination.moves.adopt(one.request_id, parked) is None
    source.moves.release(one.request_id)


def test_a_waiting_request_that_moves_takes_its_class_and_a_turn_along():
    source, destination = engine(max_running=1), engine(max_running=1)
    for eng in (source, destination):
        eng.add(wish("first", HIGH))
        eng.step()
    destination.add(wish("a1", tenant="a", came=1))
    destination.add(wish("a2", tenant="a", came=2))
    destination.add(wish("low", LOW))
    moved = wish("b1", tenant="b", came=3)
    source.add(moved)
    move(source, destination, moved)
    assert queue(destination) == ["a1", "b1", "a2", "low"]
    assert queue(source) == []


def test_a_running_request_that_moved_makes_room_like_any_other():
    source, destination = engine(max_running=1), engine(max_running=2)
    destination.add(wish("here", LOW, came=1))
    destination.step()
    moved = wish("moved", LOW, came=2)
    source.add(moved)
    source.step()
    move(source, destination, moved)
    destination.step()
    destination.add(wish("high", HIGH, came=3))
    destination.step()
    assert running(destination) == {"here", "high"}
    run_to_end(destination)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 250), st.integers(1, 60), st.sampled_from("hnl")),
        st.tuples(st.just("step"), st.integers(1, 20)),
        st.tuples(st.just("wait"), st.integers(1, 150)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
    ),
    max_size=40,
)
CLASSES = {"h": HIGH, "n": NORMAL, "l": LOW}


@settings(max_examples=60, deadline=None)
@given(actions, st.integers(24, 60), st.integers(1, 5))
def test_whatever_happens_everybody_is_answered_and_nobody_makes_room_too_often(
    todo, blocks, max_running
):
    clock = Clock()
    eng = engine(clock, blocks=blocks, max_running=max_running)
    added: list[str] = []
    aborted: set[str] = set()
    ended: Counter[str] = Counter()

    def step() -> None:
        ended.update(o.request_id for o in eng.step() if o.finish_reason)
        eng.check_integrity()
        assert all(eng._queue._turns.times(name) <= 3 for name in running(eng))

    for kind, *what in todo:
        if kind == "add":
            name = f"r{len(added)}"
            tenant = f"t{len(added) % 3}"
            cost = {"prompt": what[0], "output": what[1]}
            eng.add(wish(name, CLASSES[what[2]], tenant=tenant, came=len(added), **cost))
            added.append(name)
        elif kind == "wait":
            clock.now_s += what[0]
        elif kind == "abort" and what[0] < len(added):
            if added[what[0]] not in ended:
                aborted.add(added[what[0]])
            eng.abort([added[what[0]]])
        elif kind == "step":
            for _ in range(what[0]):
                step()
    for _ in range(20_000):
        if not eng.has_work():
            break
        step()
    assert ended == Counter(set(added) - aborted)
    assert eng.load().used_tokens == 0
    assert not eng._queue._turns._entries


def test_a_class_that_is_not_preemptible_makes_no_room() -> None:
    for is_preemptible in (True, False):
        eng = engine()
        eng.use_classes({LOW: ClassRule(is_preemptible=is_preemptible)})
        full_of(eng, LOW)
        eng.add(wish("urgent", HIGH))
        eng.step()
        assert ("urgent" in running(eng)) is is_preemptible


def test_a_class_ages_by_its_own_bound_from_the_moment_it_is_told() -> None:
    clock = Clock()
    eng = engine(clock)
    full_of(eng, HIGH)
    eng.add(wish("low", LOW))
    clock.now_s = 30.0
    eng.add(wish("normal", NORMAL))
    eng.step()
    assert queue(eng) == ["normal", "low"], "the pool's own bound is longer"
    eng.use_classes({LOW: ClassRule(ageing_s=10.0)})
    eng.add(wish("high", HIGH))
    eng.step()
    assert queue(eng) == ["high", "low", "normal"]


def test_a_class_whose_bound_is_none_never_ages() -> None:
    clock = Clock()
    eng = engine(clock)
    eng.use_classes({LOW: ClassRule(ageing_s=0.0)})
    full_of(eng, HIGH)
    eng.add(wish("low", LOW))
    clock.now_s = 100 * AGEING_S
    eng.add(wish("normal", NORMAL))
    eng.step()
    assert queue(eng) == ["normal", "low"]
