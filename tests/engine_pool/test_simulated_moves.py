from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_pool.engine_spec import SampleText
from engine_pool.ports import EngineRequest, StepOutput
from engine_pool.simulator.live_engine import SimulatedEngine, SimulatedLimits
from engine_pool.types import PriorityClass
from migration.ports import Held, Outgoing, Refusal
from migration.stages import room_tokens
from tests.engine_pool.make import request

TEXT = SampleText(
    sentences=tuple(tuple(range(100 * n, 100 * n + 7)) for n in range(1, 6)),
    openings=tuple(tuple(range(100 * n + 50, 100 * n + 57)) for n in range(1, 6)),
    eos_token_id=2,
)
SIZE = 16


def engine(
    *, blocks: int = 60, max_running: int = 4, max_model_len: int = 512, text: SampleText = TEXT
) -> SimulatedEngine:
    limits = SimulatedLimits(
        capacity_blocks=blocks, max_running=max_running, max_model_len=max_model_len
    )
    return SimulatedEngine(text, limits, sleep=lambda _: None)


class Said:
    """What each request has said, wherever it ran."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[StepOutput]] = {}

    def step(self, *engines: SimulatedEngine) -> None:
        for eng in engines:
            if eng.has_work():
                for output in eng.step():
                    self.outputs.setdefault(output.request_id, []).append(output)
            eng.check_integrity()

    def run_to_end(self, *engines: SimulatedEngine, most_steps: int = 5000) -> None:
        for _ in range(most_steps):
            if not any(eng.has_work() for eng in engines):
                return
            self.step(*engines)
        raise AssertionError("the engines do not come to an end")

    def tokens(self, name: str = "r1") -> list[int]:
        return [t for output in self.outputs.get(name, []) for t in output.token_ids]

    def reasons(self, name: str = "r1") -> list[str]:
        return [o.finish_reason for o in self.outputs.get(name, []) if o.finish_reason]


def unmoved(wish: EngineRequest) -> list[int]:
    eng, said = engine(blocks=400, max_model_len=4096), Said()
    eng.add(wish)
    said.run_to_end(eng)
    return said.tokens(wish.request_id)


def look(eng: SimulatedEngine, name: str = "r1") -> Outgoing:
    found = eng.moves.look(name)
    assert isinstance(found, Outgoing), found
    return found


def held(answer: Held | Refusal) -> Held:
    assert isinstance(answer, Held), answer
    return answer


def move(
    wish: EngineRequest,
    source: SimulatedEngine,
    destination: SimulatedEngine,
    said: Said | None = None,
    *,
    steps: int = 0,
) -> Refusal | None:
    """Moves a request as an agent would; both sides take `steps` steps while a stage is copied."""
    name = wish.request_id
    out = source.moves.look(name)
    if isinstance(out, Refusal):
        return out
    room = 0 if out.is_queued else room_tokens(out.computed_tokens, SIZE)
    answer = destination.moves.hold(wish, out.output_token_ids, room)
    if isinstance(answer, Refusal):
        return answer
    for _ in range(steps if said else 0):
        said.step(source, destination)
    refusal = give_over(name, source, destination)
    if refusal is not None:
        destination.moves.discard(name)
    source.check_integrity()
    destination.check_integrity()
    return refusal


def give_over(name: str, source: SimulatedEngine, destination: SimulatedEngine) -> Refusal | None:
    """Moves a request for which the destination holds room; on a refusal it stays."""
    out = source.moves.look(name)
    if isinstance(out, Refusal):
        return out
    if not out.is_queued:
        grown = destination.moves.reserve(name, room_tokens(out.computed_tokens, SIZE))
        if isinstance(grown, Refusal):
            return grown
    refusal = source.moves.park(name)
    if refusal is not None:
        return refusal
    parked = source.moves.parked(name)
    assert parked is not None
    refusal = destination.moves.adopt(name, parked)
    if refusal is None:
        source.moves.release(name)
    else:
        source.moves.unpark(name)
    return refusal


@settings(max_examples=80, deadline=None)
@given(
    prompt=st.integers(1, 200),
    length=st.integers(1, 150),
    before=st.integers(0, 160),
    while_copied=st.integers(0, 20),
)
def test_an_answer_moved_at_any_point_is_the_unmoved_one(prompt, length, before, while_copied):
    wish = request(prompt_tokens=prompt, max_tokens=length, min_tokens=length)
    source, destination, said = engine(), engine(), Said()
    source.add(wish)
    for _ in range(before):
        said.step(source)
    was_over = bool(said.reasons())
    refusal = move(wish, source, destination, said, steps=while_copied)
    assert not was_over or refusal is not None
    said.run_to_end(source, destination)
    assert said.tokens() == unmoved(wish)
    assert said.reasons() == ["length"]
    for eng in (source, destination):
        assert eng.load().used_tokens == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.booleans()), max_size=30),
    st.integers(14, 40),
    st.integers(1, 4),
)
def test_many_moves_to_and_fro_lose_neither_a_token_nor_a_block(todo, blocks, max_running):
    engines = [engine(blocks=blocks, max_running=max_running, max_model_len=200) for _ in "ab"]
    said = Said()
    wishes = [
        request(f"r{n}", prompt_tokens=30 + n, max_tokens=60 + 7 * n, arrival_unix_s=n)
        for n in range(6)
    ]
    for n, wish in enumerate(wishes):
        engines[n % 2].add(wish)
    for which, steps, is_left_to_right in todo:
        source, destination = engines if is_left_to_right else engines[::-1]
        move(wishes[which], source, destination, said, steps=steps)
    said.run_to_end(*engines)
    for wish in wishes:
        assert said.tokens(wish.request_id) == unmoved(wish)
        assert len(said.reasons(wish.request_id)) == 1
    for eng in engines:
        assert eng.load().used_tokens == 0


def test_a_moved_request_computes_exactly_one_token_in_its_next_step():
    wish = request(prompt_tokens=50, max_tokens=40)
    source, destination, said = engine(), engine(), Said()
    source.add(wish)
    for _ in range(5):
        said.step(source)
    assert move(wish, source, destination) is None
    assert not source.has_work()
    said.step(destination)
    assert len(said.tokens()) == 6
    assert said.tokens() == unmoved(wish)[:6]


def test_a_request_moved_there_and_back_is_what_it_was():
    wish = request(prompt_tokens=50, max_tokens=60, min_tokens=60)
    a, b, said = engine(), engine(), Said()
    a.add(wish)
    for source, destination in ((a, b), (b, a), (a, b)):
        for _ in range(12):
            said.step(source)
        assert move(wish, source, destination, said, steps=2) is None
    said.run_to_end(a, b)
    assert said.tokens() == unmoved(wish)


def test_a_look_counts_only_full_blocks_of_computed_tokens():
    eng, said = engine(), Said()
    eng.add(request(prompt_tokens=31, max_tokens=40))
    assert look(eng).is_queued
    assert look(eng).computed_tokens == 0
    said.step(eng)
    out = look(eng)
    assert (out.computed_tokens, out.complete_blocks, out.is_queued) == (31, (0,), False)
    assert list(out.output_token_ids) == said.tokens()
    said.step(eng)
    assert look(eng).complete_blocks == (0, 1)


def test_a_request_that_is_not_here_is_finished():
    moves = engine().moves
    for found in (moves.look("gone"), moves.park("gone")):
        assert isinstance(found, Refusal)
        assert found.code == "request_finished"
    assert moves.parked("gone") is None
    moves.unpark("gone")
    moves.discard("gone")


def test_a_parked_request_stands_still_and_keeps_its_blocks_and_its_place():
    eng, said = engine(max_running=2), Said()
    for name in ("r1", "r2", "r3"):
        eng.add(request(name, max_tokens=30, min_tokens=30))
    said.step(eng)
    used = eng.load().used_tokens
    assert eng.moves.park("r1") is None
    for _ in range(3):
        said.step(eng)
    assert len(said.tokens("r1")) == 1
    assert said.tokens("r3") == []
    load = eng.load()
    assert {r.request_id for r in load.running} == {"r1", "r2"}
    assert load.used_tokens >= used
    eng.moves.unpark("r1")
    said.step(eng)
    assert len(said.tokens("r1")) == 2


def test_an_engine_with_only_parked_requests_has_no_work():
    eng, said = engine(max_running=1), Said()
    eng.add(request("r1"))
    eng.add(request("r2"))
    said.step(eng)
    eng.moves.park("r1")
    assert not eng.has_work()
    eng.moves.release("r1")
    assert eng.has_work()
    assert eng.load().used_tokens == 0


def test_a_parked_request_whose_client_left_frees_its_blocks():
    for end in ("abort_parked", "abort"):
        eng, said = engine(), Said()
        eng.add(request())
        said.step(eng)
        eng.moves.park("r1")
        (eng.moves.abort_parked if end == "abort_parked" else eng.abort)(["r1"])
        eng.check_integrity()
        assert eng.load().used_tokens == 0
        assert eng.load().running == ()


def test_abort_parked_leaves_running_requests_alone():
    eng, said = engine(), Said()
    eng.add(request())
    said.step(eng)
    eng.moves.abort_parked(["r1"])
    assert look(eng).output_token_ids


def test_held_room_is_used_but_it_is_nobodys_request_here():
    eng = engine(blocks=20)
    room = held(eng.moves.hold(request(prompt_tokens=40), (), 60))
    assert room.blocks == (0, 1, 2, 3)
    assert room.cached_blocks == 0
    load = eng.load()
    assert load.used_tokens == 64
    assert load.running == load.waiting == ()
    assert not eng.has_work()
    eng.abort([request().request_id])
    assert eng.load().used_tokens == 64
    eng.moves.discard("r1")
    eng.check_integrity()
    assert eng.load().used_tokens == 0


def test_held_room_grows_and_is_not_taken_away():
    eng = engine(blocks=20)
    eng.moves.hold(request(prompt_tokens=40), (), 60)
    assert len(held(eng.moves.reserve("r1", 100)).blocks) == 7
    assert len(held(eng.moves.reserve("r1", 20)).blocks) == 7
    refusal = eng.moves.reserve("r1", 20 * SIZE + 1)
    assert refusal == Refusal("no_blocks", "13 blocks are free, 14 are needed")
    assert eng.load().used_tokens == 7 * SIZE


def test_no_room_is_made_by_preempting():
    eng, said = engine(blocks=12), Said()
    eng.add(request("here", prompt_tokens=100, max_tokens=20))
    said.step(eng)
    refusal = eng.moves.hold(request(prompt_tokens=60), (), 80)
    assert refusal == Refusal("no_blocks", "4 blocks are free, 5 are needed")
    eng.check_integrity()
    assert eng.load().preemptions_total == 0
    assert isinstance(eng.moves.hold(request(prompt_tokens=60), (), 64), Held)


def test_a_full_batch_has_no_place_for_a_held_request():
    eng, said = engine(max_running=1), Said()
    eng.add(request("here"))
    said.step(eng)
    refusal = eng.moves.hold(request(), (), 32)
    assert refusal == Refusal("no_blocks", "all 1 places of its batch are taken")
    queued = held(eng.moves.hold(request(), (), 0))
    assert queued.blocks == ()
    assert isinstance(eng.moves.reserve("r1", 32), Refusal)


def test_a_held_request_keeps_its_place_in_the_batch():
    eng, said = engine(max_running=2), Said()
    eng.moves.hold(request("coming"), (), 32)
    for name in ("a", "b"):
        eng.add(request(name))
    said.step(eng)
    assert [r.request_id for r in eng.load().running] == ["a"]


@pytest.mark.parametrize(
    ("wish", "output", "words"),
    [
        pytest.param(request(prompt_tokens=600), (), "600 prompt tokens", id="too long"),
        pytest.param(request(), (1, 2, 3), "would have said", id="another text"),
    ],
)
def test_what_an_engine_could_never_go_on_with_is_not_held(wish, output, words):
    eng = engine()
    refusal = eng.moves.hold(wish, output, 32)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "refused"
    assert words in refusal.why
    assert eng.load().used_tokens == 0


def test_a_request_is_held_once_and_not_where_it_runs():
    eng = engine()
    eng.add(request("runs"))
    eng.moves.hold(request("held"), (), 32)
    for name in ("runs", "held"):
        assert eng.moves.hold(request(name), (), 32) == Refusal(
            "refused", "the request is here already"
        )
    eng.check_integrity()


def test_a_refused_adoption_leaves_it_held_and_the_source_goes_on():
    wish = request(prompt_tokens=60, max_tokens=40)
    source, destination, said = engine(), engine(), Said()
    source.add(wish)
    said.step(source)
    source.moves.park("r1")
    parked = source.moves.parked("r1")
    assert parked is not None
    destination.moves.hold(wish, (), 32)
    for brought, words in (
        (parked, "blocks for 32 tokens and brings 60"),
        (replace(parked, computed_tokens=50), "50 of its 61 tokens"),
        (replace(parked, output_token_ids=(1,)), "would have said"),
        (replace(parked, state=b"\xc1"), "cannot be read"),
    ):
        refusal = destination.moves.adopt("r1", brought)
        assert isinstance(refusal, Refusal)
        assert words in refusal.why
        assert destination.load().used_tokens == 32
    destination.moves.discard("r1")
    source.moves.unpark("r1")
    said.run_to_end(source, destination)
    assert said.tokens() == unmoved(wish)


def test_an_engine_with_another_limit_does_not_end_an_answer_early():
    wish = request(prompt_tokens=100, max_tokens=400)
    source, destination, said = engine(), engine(max_model_len=300), Said()
    source.add(wish)
    said.step(source)
    refusal = move(wish, source, destination)
    assert isinstance(refusal, Refusal)
    assert "it may get 500 tokens long" in refusal.why
    short = request("short", prompt_tokens=100, max_tokens=50)
    source.add(short)
    said.step(source)
    assert move(short, source, destination) is None


def test_a_queued_request_moves_without_blocks():
    wish = request("queued", max_tokens=20, arrival_unix_s=2)
    source, destination, said = engine(max_running=1), engine(), Said()
    source.add(request("first", arrival_unix_s=1))
    said.step(source)
    source.add(wish)
    assert look(source, "queued").is_queued
    assert move(wish, source, destination) is None
    assert source.load().waiting == ()
    assert [r.request_id for r in destination.load().waiting] == ["queued"]
    said.run_to_end(destination)
    assert said.tokens("queued") == unmoved(wish)


def test_a_request_that_leaves_the_queue_in_mid_move_is_not_adopted_without_its_blocks():
    wish = request(max_tokens=20)
    source, destination, said = engine(), engine(), Said()
    source.add(wish)
    destination.moves.hold(wish, (), 0)
    said.step(source)
    source.moves.park("r1")
    parked = source.moves.parked("r1")
    assert parked is not None
    assert isinstance(destination.moves.adopt("r1", parked), Refusal)


def test_a_parked_queued_request_is_in_the_queue_of_the_load_and_returns_to_its_place():
    eng, said = engine(max_running=1), Said()
    eng.add(request("runs", arrival_unix_s=1))
    said.step(eng)
    for n, name in enumerate(("second", "third"), 2):
        eng.add(request(name, arrival_unix_s=n))
    eng.moves.park("second")
    assert {r.request_id for r in eng.load().waiting} == {"second", "third"}
    eng.moves.unpark("second")
    assert [r.request_id for r in eng.load().waiting] == ["second", "third"]


def test_a_preempted_request_moves_and_is_computed_again():
    source, destination, said = engine(blocks=16), engine(), Said()
    early = request("early", prompt_tokens=100, max_tokens=110, arrival_unix_s=1)
    late = request("late", prompt_tokens=100, max_tokens=120, min_tokens=120, arrival_unix_s=2)
    source.add(early)
    source.add(late)
    while not source.load().preemptions_total:
        said.step(source)
    out = look(source, "late")
    assert out.is_queued
    assert (out.preemptions, len(out.output_token_ids) > 0) == (1, True)
    assert move(late, source, destination) is None
    assert destination.load().waiting[0].preemptions == 1
    said.run_to_end(source, destination)
    assert said.tokens("late") == unmoved(late)
    assert source.load().preemptions_total == 1


def test_a_preemption_in_mid_move_is_seen():
    source, said = engine(blocks=16), Said()
    for n, name in enumerate(("early", "late")):
        source.add(request(name, prompt_tokens=100, max_tokens=120, min_tokens=120,
                           arrival_unix_s=n))  # fmt: skip
    said.step(source)
    before = look(source, "late").preemptions
    while not source.load().preemptions_total:
        said.step(source)
    assert look(source, "late").preemptions == before + 1


def test_an_adopted_request_keeps_its_class_among_the_others():
    source, destination, said = engine(), engine(max_running=2), Said()
    high = request("high", priority=PriorityClass.HIGH, max_tokens=40, min_tokens=40)
    source.add(high)
    said.step(source)
    destination.add(request("low", priority=PriorityClass.LOW, max_tokens=40, min_tokens=40))
    said.step(destination)
    assert move(high, source, destination) is None
    assert {r.request_id: r.priority_class for r in destination.load().running} == {
        "low": PriorityClass.LOW,
        "high": PriorityClass.HIGH,
    }


def test_only_engines_that_say_the_same_have_the_same_shape():
    other = SampleText(TEXT.sentences, TEXT.openings, eos_token_id=3)
    assert engine().moves.shape == engine(blocks=99).moves.shape
    assert engine().moves.shape != engine(text=other).moves.shape
    assert engine().moves.shape.token_bytes == 524_288


def test_a_probe_says_all_its_tokens_and_the_same_ones_again():
    answers = []
    for _ in range(2):
        eng, said = engine(), Said()
        eng.add(eng.moves.probe("probe-1", 100, 48))
        said.run_to_end(eng)
        answers.append(said.tokens("probe-1"))
    assert len(answers[0]) == 48
    assert answers[0] == answers[1]
