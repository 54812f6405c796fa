"""The ranking chooses what `choose` chooses, whatever was put, changed and removed before."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_pool.policy.dispatch import Choice, Refusal, RequestDemand, choose
from engine_pool.policy.ranking import Ranking
from engine_pool.policy.settings import DispatchRule
from engine_pool.policy.standing import Standing, add_queued
from engine_pool.types import InstanceName, RequestId
from tests.policy.make import HIGH, NORMAL, demand, demands, dispatch_rules, pools, standing
from tests.policy.make import standings as one_standing

NAMES = [InstanceName(f"i-{n:02d}") for n in range(10)]


def copied(s: Standing) -> Standing:
    return replace(s, queued=list(s.queued), queued_tokens=list(s.queued_tokens))


def sent_there(s: Standing, request: RequestDemand) -> Standing:
    after = copied(s)
    add_queued(after, request.priority_class.rank, request.demand_tokens)
    return after


@settings(max_examples=200)
@given(pools(max_size=10), demands(), dispatch_rules())
def test_a_ranking_chooses_as_a_look_at_everybody_does(pool, request, rule):
    ranking = Ranking(rule)
    for s in pool:
        ranking.put(s)
    assert len(ranking) == sum(s.is_open for s in pool)
    assert ranking.choose(request) == choose(pool, request, rule)


puts = st.sampled_from(NAMES).flatmap(one_standing)
removals = st.sampled_from(NAMES)


@settings(max_examples=150)
@given(st.data(), dispatch_rules())
def test_it_does_so_after_any_changes(data, rule):
    """Each chosen instance gets the request into its queue, as the ledger does."""
    ranking, pool = Ranking(rule), {}
    for step in data.draw(st.lists(puts | removals | demands(), max_size=30)):
        if isinstance(step, Standing):
            pool[step.instance] = step
            ranking.put(step)
        elif isinstance(step, RequestDemand):
            found = ranking.choose(step)
            assert found == choose(list(pool.values()), step, rule)
            if isinstance(found, Choice):
                pool[found.instance] = sent_there(pool[found.instance], step)
                ranking.put(pool[found.instance])
        else:
            pool.pop(step, None)
            ranking.remove(step)
    assert len(ranking) == sum(s.is_open for s in pool.values())


@settings(max_examples=60)
@given(st.data(), st.lists(demands(), max_size=12), dispatch_rules())
def test_an_owner_may_change_a_standing_and_put_it_again(data, requests, rule):
    pool = data.draw(pools(min_size=1))
    ranking = Ranking(rule)
    for s in pool:
        ranking.put(s)
    by_name = {s.instance: s for s in pool}
    for request in requests:
        found = ranking.choose(request)
        assert found == choose(pool, request, rule)
        if isinstance(found, Choice):
            s = by_name[found.instance]
            add_queued(s, request.priority_class.rank, request.demand_tokens)
            ranking.put(s)
        closed = data.draw(st.sampled_from(pool))
        closed.is_open = not closed.is_open and not closed.is_draining
        ranking.put(closed)


@settings(max_examples=60)
@given(st.integers(1, 9), st.lists(demands(), min_size=1, max_size=40), dispatch_rules())
def test_ties_are_broken_alike(count, requests, rule):
    pool = [standing(f"i-{n:02d}", capacity=(1600, 16_000)[n % 2]) for n in range(count)]
    ranking = Ranking(rule)
    for s in reversed(pool):
        ranking.put(s)
    for request in requests:
        assert ranking.choose(request) == choose(pool, request, rule)


def test_ties_are_spread_evenly():
    ranking = Ranking(DispatchRule())
    for n in range(8):
        ranking.put(standing(f"i-{n:02d}"))
    found = [ranking.choose(demand(name=f"r{n}")) for n in range(800)]
    counts = Counter(c.instance for c in found if isinstance(c, Choice))
    assert len(counts) == 8
    assert min(counts.values()) > 60


def test_an_empty_ranking_refuses():
    ranking = Ranking(DispatchRule())
    assert ranking.choose(demand()) == Refusal("no instance is open")
    ranking.put(standing())
    ranking.remove(InstanceName("i-01"))
    ranking.remove(InstanceName("unknown"))
    assert ranking.choose(demand()) == Refusal("no instance is open")


def test_an_instance_that_closes_gets_nothing_more():
    ranking = Ranking(DispatchRule())
    ranking.put(standing("i-01"))
    ranking.put(standing("i-02", {NORMAL: [8000]}))
    ranking.put(standing("i-01", is_draining=True))
    found = ranking.choose(demand())
    assert isinstance(found, Choice)
    assert found.instance == "i-02"


def test_a_burst_of_a_packed_class_fills_a_host_to_its_target_load():
    """High requests of 160 tokens: ten reach 1600 on one instance, the next ten on another."""
    ranking, pool = Ranking(DispatchRule()), {n: standing(n) for n in NAMES[:3]}
    for s in pool.values():
        ranking.put(s)
    counts: Counter[str] = Counter()
    for n in range(20):
        request = RequestDemand(RequestId(f"r{n}"), 160, HIGH)
        found = ranking.choose(request)
        assert isinstance(found, Choice)
        pool[found.instance] = sent_there(pool[found.instance], request)
        ranking.put(pool[found.instance])
        counts[found.instance] += 1
    assert sorted(counts.values()) == [10, 10]
