"""One round of rebalancing: tables of cases and properties, without a clock or an engine."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.freeness import freeness_of
from engine_pool.policy.rebalancing import Restraints, Round, plan_round
from engine_pool.policy.settings import HeadroomRule, RebalanceRule
from engine_pool.policy.standing import Standing, add_queued
from engine_pool.types import InstanceName, PriorityClass

BLOCK = 16
HIGH, NORMAL, LOW = (c.rank for c in PriorityClass)
RULE = RebalanceRule()
HEADROOM = HeadroomRule({PriorityClass.HIGH: 1600})


@dataclass(frozen=True)
class Req:
    name: str
    kv_tokens: int
    """0: it waits."""
    rank: int = NORMAL
    demand_tokens: int = 0
    can_move: bool = True

    @property
    def need_tokens(self) -> int:
        return (self.kv_tokens or self.demand_tokens) + BLOCK


@dataclass(frozen=True)
class Place:
    name: str
    requests: tuple[Req, ...] = ()
    capacity_tokens: int = 4096
    max_running: int = 64
    is_open: bool = True
    is_draining: bool = False
    more_used_tokens: int = 0

    def standing(self) -> Standing:
        s = Standing(InstanceName(self.name), self.capacity_tokens, BLOCK, self.max_running)
        s.used_tokens = self.more_used_tokens
        s.is_open, s.is_draining = self.is_open, self.is_draining
        for r in self.requests:
            if r.kv_tokens:
                s.used_tokens += r.kv_tokens
                s.running[r.rank] += 1
                s.running_tokens[r.rank] += r.kv_tokens
            else:
                add_queued(s, r.rank, r.demand_tokens)
        return s


def run(name: str, *kv_tokens: int, rank: int = NORMAL) -> tuple[Req, ...]:
    return tuple(Req(f"{name}-{i}", kv, rank) for i, kv in enumerate(kv_tokens))


def wait(name: str, demand_tokens: int, rank: int = NORMAL) -> Req:
    return Req(name, 0, rank, demand_tokens)


def plan(
    places: Iterable[Place],
    rule: RebalanceRule = RULE,
    restraints: Restraints | None = None,
    before: Mapping[InstanceName, InstanceName] | None = None,
    looked_at: list[str] | None = None,
) -> Round[Req]:
    by_name = {InstanceName(p.name): p for p in places}

    def requests_of(instance: InstanceName) -> tuple[Req, ...]:
        if looked_at is not None:
            looked_at.append(instance)
        return by_name[instance].requests

    standings = [p.standing() for p in by_name.values()]
    return plan_round(standings, requests_of, rule, HEADROOM, before, restraints)


def told(found: Round[Req]) -> list[tuple[str, str, str]]:
    return [(m.request.name, m.source, m.destination) for m in found.moves]


FULL = Place("a", run("r", 1000, 1000, 1000, 1000))
"""96 tokens free for four: F = 24."""
EMPTY = Place("b")


@pytest.mark.parametrize(
    ("places", "moves"),
    [
        pytest.param((), [], id="no instance"),
        pytest.param((FULL,), [], id="one instance, however full"),
        pytest.param((FULL, EMPTY), [("r-0", "a", "b")], id="one move is enough"),
        pytest.param((Place("a", run("r", 500)), EMPTY), [], id="free enough: nothing moves"),
        pytest.param((FULL, replace(EMPTY, is_open=False)), [], id="a closed one takes nothing"),
        pytest.param((FULL, replace(EMPTY, is_draining=True)), [], id="nor a draining one"),
        pytest.param(
            (FULL, Place("b", (wait("w", 64),))), [], id="nobody moves to where somebody waits"
        ),
        pytest.param(
            (FULL, Place("b", run("s", 64, 64), max_running=2)), [], id="nor into a full batch"
        ),
        pytest.param(
            (Place("a", run("r", 2000, 40, 2040)), EMPTY),
            [("r-1", "a", "b"), ("r-0", "a", "b")],
            id="it goes on while both sides qualify",
        ),
        pytest.param(
            (
                Place("a", (*run("h", 32, rank=HIGH), *run("l", 900, rank=LOW), *run("n", 3100))),
                EMPTY,
            ),
            [("l-0", "a", "b"), ("n-0", "a", "b")],
            id="lower classes first, also when they are longer",
        ),
        pytest.param(
            (Place("a", run("h", 800, 700, rank=HIGH)), EMPTY),
            [],
            id="a high class does not leave because of its own headroom",
        ),
        pytest.param(
            (Place("a", run("r", 64, 128), is_draining=True, is_open=False), EMPTY),
            [("r-0", "a", "b"), ("r-1", "a", "b")],
            id="a draining one gives away, however free it is",
        ),
        pytest.param(
            (
                Place("a", (*run("r", 640), wait("w", 64)), is_draining=True, is_open=False),
                EMPTY,
            ),
            [("w", "a", "b"), ("r-0", "a", "b")],
            id="also those that wait there",
        ),
        pytest.param(
            (Place("a", (replace(run("r", 64)[0], can_move=False),), is_draining=True), EMPTY),
            [],
            id="never one that cannot move",
        ),
        pytest.param(
            (FULL, Place("c", run("s", 2040, 2040)), Place("d", run("t", 1000)), EMPTY),
            [("s-0", "c", "b"), ("r-0", "a", "d")],
            id="the least free goes to the freest, the next to the next",
        ),
    ],
)
def test_pairs_even_out(places: tuple[Place, ...], moves: list[tuple[str, str, str]]) -> None:
    assert told(plan(places)) == moves


@pytest.mark.parametrize(
    ("places", "moves"),
    [
        pytest.param(
            (Place("a", (*run("r", 1800, 1800), wait("w", 1000))), Place("b", run("s", 2000))),
            [("w", "a", "b")],
            id="a blocked head goes where it fits, before anything is copied",
        ),
        pytest.param(
            (Place("a", (*run("r", 1000), wait("w", 512))), EMPTY),
            [],
            id="a head that fits where it is stays: it runs with the next step",
        ),
        pytest.param(
            (Place("a", (*run("r", 64, 64), wait("w", 64)), max_running=2), EMPTY),
            [("w", "a", "b")],
            id="a full batch blocks, too",
        ),
        pytest.param(
            (
                Place("a", (*run("r", 1000, 1500), wait("w", 2500))),
                Place("b", run("s", 2500)),
                Place("c", run("t", 3000)),
            ),
            [("r-0", "a", "c")],
            id="one that fits nowhere gets room, in the smallest hole that does",
        ),
        pytest.param(
            (
                Place("a", (*run("r", 300, 300, 300, 300, 1300), wait("w", 2500))),
                Place("b", run("s", 2500)),
            ),
            [("r-4", "a", "b")],
            id="room is made by one that is large enough, not by the shortest",
        ),
        pytest.param(
            (Place("a", (*run("r", 3000), wait("w", 2500))), Place("b", run("s", 2500))),
            [],
            id="nothing moves when one move does not do",
        ),
    ],
)
def test_blocked_heads(places: tuple[Place, ...], moves: list[tuple[str, str, str]]) -> None:
    assert told(plan(places))[: max(1, len(moves))] == moves


def test_without_defragmentation_heads_stay() -> None:
    places = (Place("a", (*run("r", 1000), wait("w", 3500))), EMPTY)
    moves = told(plan(places, replace(RULE, defragments=False)))
    assert "w" not in [name for name, _, _ in moves]


@pytest.mark.parametrize(
    ("going_on", "moves"),
    [
        pytest.param({}, 2, id="none goes on"),
        pytest.param({"a": 1}, 1, id="one more from the source"),
        pytest.param({"b": 1}, 1, id="one more to the destination"),
        pytest.param({"a": 2}, 0, id="the source is busy"),
        pytest.param({"b": 5}, 0, id="the destination is busy"),
        pytest.param({"c": 2}, 2, id="others' moves do not count"),
    ],
)
def test_moves_that_go_on_count_at_both_ends(going_on: dict[str, int], moves: int) -> None:
    at = {InstanceName(name): count for name, count in going_on.items()}
    drain = Place("a", run("r", 64, 64, 64), is_draining=True)
    found = plan((drain, EMPTY), restraints=Restraints(going_on=at))
    assert len(found.moves) == moves
    assert "go on at" in found.idle[-1].why


def test_a_round_keeps_to_its_tokens() -> None:
    drain = Place("a", run("r", 640, 640), is_draining=True)
    found = plan((drain, EMPTY), replace(RULE, tokens_per_round=1000))
    assert told(found) == [("r-0", "a", "b")]
    assert found.idle[-1].why == "1312 KV tokens are over 1000 a round"


def test_a_request_above_the_rounds_tokens_goes_alone() -> None:
    drain = Place("a", run("r", 640, 640), is_draining=True)
    assert len(plan((drain, EMPTY), replace(RULE, tokens_per_round=100)).moves) == 1


def test_a_pair_stays_while_both_qualify() -> None:
    other = Place("c", run("s", 1000))
    before = {InstanceName("a"): InstanceName("c")}
    assert told(plan((FULL, EMPTY, other), before=before)) == [("r-0", "a", "c")]
    full = Place("c", run("s", 4060))
    assert plan((FULL, EMPTY, full), before=before).paired[InstanceName("a")] == "b"


def test_a_pair_that_does_not_reach_each_other_gets_somebody_else() -> None:
    apart = Restraints(apart={(InstanceName("a"), InstanceName("b"))})
    found = plan((FULL, EMPTY, Place("c", run("s", 1000))), restraints=apart)
    assert told(found) == [("r-0", "a", "c")]
    assert found.idle[0].why == "they did not reach each other lately"
    assert plan((FULL, EMPTY), restraints=apart).moves == ()


def test_the_reason_has_the_numbers_and_the_thresholds() -> None:
    (move,) = plan((FULL, EMPTY)).moves
    assert move.reason == ("a 24.0 < 48 and b idle > 48; normal class, 1016 KV tokens to place")


def test_requests_are_looked_at_only_where_something_may_move() -> None:
    looked_at: list[str] = []
    calm = [Place(f"i-{n}", run(f"r{n}", 100, 200)) for n in range(50)]
    assert plan(calm, looked_at=looked_at).moves == ()
    assert looked_at == []
    plan((*calm, FULL), looked_at=looked_at)
    assert looked_at == ["a"]


def test_the_standings_stay_as_they_are() -> None:
    places = (Place("a", (*run("r", 1800, 1800), wait("w", 1000))), EMPTY)
    standings = [p.standing() for p in places]
    requests = {p.name: p.requests for p in places}
    assert plan_round(standings, lambda n: requests[n], RULE, HEADROOM).moves
    assert standings == [p.standing() for p in places]


@st.composite
def pools(draw: st.DrawFn) -> list[Place]:
    places = []
    for n in range(draw(st.integers(0, 6))):
        capacity = draw(st.sampled_from([1024, 4096]))
        left, requests = capacity, []
        for i in range(draw(st.integers(0, 6))):
            kv_tokens = draw(st.integers(1, capacity // BLOCK)) * BLOCK
            rank = draw(st.sampled_from([HIGH, NORMAL, LOW]))
            can_move = draw(st.booleans()) or draw(st.booleans())
            if kv_tokens > left or draw(st.integers(0, 4)) == 0:
                requests.append(Req(f"{n}-{i}", 0, rank, kv_tokens, can_move))
            else:
                left -= kv_tokens
                requests.append(Req(f"{n}-{i}", kv_tokens, rank, 0, can_move))
        state = draw(st.sampled_from(["open", "open", "open", "closed", "draining"]))
        places.append(
            Place(
                f"i-{n}",
                tuple(requests),
                capacity,
                max_running=draw(st.sampled_from([2, 64])),
                is_open=state == "open",
                is_draining=state == "draining",
            )
        )
    return places


rules = st.builds(
    RebalanceRule,
    below_steps=st.sampled_from([0.0, 48.0]),
    above_steps=st.sampled_from([48.0, 160.0]),
    moves_per_instance=st.integers(1, 3),
    tokens_per_round=st.sampled_from([500, 2000, 65_536]),
    defragments=st.booleans(),
)


@given(pools(), rules, st.randoms(use_true_random=False))
def test_a_round_keeps_its_rules(places: list[Place], rule: RebalanceRule, random: Random) -> None:
    watermark = 0.01
    going_on = {InstanceName(p.name): random.randint(0, 2) for p in places}
    names = [InstanceName(p.name) for p in places]
    apart = {(a, b) for a in names for b in names if random.random() < 0.1}
    restraints = Restraints(going_on, apart, watermark)
    found = plan(places, rule, restraints)
    before = {p.name: p.standing() for p in places}
    counts = dict(going_on)
    for move in found.moves:
        source, destination = before[move.source], before[move.destination]
        assert move.source != move.destination
        assert move.request in next(p.requests for p in places if p.name == move.source)
        assert move.request.can_move
        assert destination.is_open
        assert not destination.is_draining
        # A drain goes wherever there is room.
        assert source.is_draining or not any(destination.queued)
        assert source.is_draining or freeness_of(destination, HEADROOM) > rule.above_steps
        assert (move.source, move.destination) not in apart
        assert not source.is_idle
        assert move.reason
        for end in (move.source, move.destination):
            counts[end] += 1
            assert counts[end] <= rule.moves_per_instance
    assert len({m.request.name for m in found.moves}) == len(found.moves)
    tokens = sum(m.request.need_tokens for m in found.moves)
    assert tokens <= rule.tokens_per_round or len(found.moves) == 1
    for name, s in before.items():
        came = [m.request.need_tokens for m in found.moves if m.destination == name]
        assert not came or sum(came) <= s.free_tokens
        assert not came or s.batch + len(came) <= s.max_running
        assert not came or {m.source for m in found.moves}.isdisjoint({name})
    shuffled = random.sample(places, len(places))
    again = plan(shuffled, rule, restraints)
    assert (again.moves, again.pairs) == (found.moves, found.pairs)


@given(pools(), rules)
def test_nobody_is_source_and_destination_in_one_round(
    places: list[Place], rule: RebalanceRule
) -> None:
    found = plan(places, rule)
    sources = {m.source for m in found.moves}
    assert not sources & {m.destination for m in found.moves}


@given(pools(), rules)
def test_a_move_leaves_its_destination_freer_than_its_source_was_or_makes_room(
    places: list[Place], rule: RebalanceRule
) -> None:
    found = plan(places, replace(rule, defragments=False))
    now = {p.name: p.standing() for p in places}
    for move in found.moves:
        source, destination = now[move.source], now[move.destination]
        rank = move.request.rank
        here = freeness_of(source, HEADROOM, rank)
        destination.used_tokens += move.request.need_tokens
        destination.running[move.request.rank] += 1
        assert source.is_draining or freeness_of(destination, HEADROOM, rank) > here
        if move.request.kv_tokens:
            source.used_tokens -= move.request.kv_tokens
            source.running[move.request.rank] -= 1
