import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.dispatch import Choice, Refusal, RequestDemand, choose
from engine_pool.policy.reports import REPORT_MAX_AGE_S, pool_standings, why_nobody
from engine_pool.policy.settings import DispatchRule
from engine_pool.types import (
    InFlight,
    InstanceName,
    InstanceState,
    PoolView,
    PriorityClass,
    RequestId,
)
from tests.engine_pool.make import NOW_UNIX_S, load, running, status, waiting

NORMAL = PriorityClass.NORMAL


def sent(instance: str, demand: int, name: str = "sent") -> InFlight:
    return InFlight(RequestId(name), InstanceName(instance), NORMAL, demand, NOW_UNIX_S)


def view(*loads, in_flight=(), states=None):
    states = states or {}
    return PoolView(
        statuses=tuple(
            status(one.instance, states.get(one.instance, InstanceState.SERVING)) for one in loads
        ),
        loads=loads,
        in_flight=tuple(in_flight),
    )


def pick(pool: PoolView, demand: int = 32, name: str = "new") -> Choice | Refusal:
    request = RequestDemand(RequestId(name), demand)
    found = choose(pool_standings(pool, NOW_UNIX_S), request, DispatchRule())
    if isinstance(found, Refusal) and not found.is_permanent:
        return Refusal(why_nobody(pool, NOW_UNIX_S))
    return found


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        pytest.param(
            view(load("i-01", batch=(running(800),)), load("i-02", batch=(running(160),))),
            "i-02",
            id="more memory a request",
        ),
        pytest.param(
            view(load("i-01", batch=(running(16),)), load("i-02")), "i-02", id="idle before busy"
        ),
        pytest.param(
            view(load("i-01"), load("i-02", capacity=3200)), "i-02", id="larger of two idle ones"
        ),
        pytest.param(
            view(
                load("i-01", batch=(running(160),), queue=(waiting(320), waiting(640))),
                load("i-02", batch=(running(320), running(336))),
            ),
            "i-02",
            id="the whole queue counts",
        ),
        pytest.param(
            view(
                load("i-01", batch=(running(160),)),
                load("i-02", batch=(running(176),)),
                in_flight=[sent("i-01", 320)],
            ),
            "i-02",
            id="what was just sent counts",
        ),
        pytest.param(
            view(
                load("i-01", batch=(running(160, name="sent"),)),
                load("i-02", batch=(running(176),)),
                in_flight=[sent("i-01", 320)],
            ),
            "i-01",
            id="but not twice once the report shows it",
        ),
        pytest.param(
            view(
                load("i-01", batch=(running(160),), ended=(RequestId("sent"),)),
                load("i-02", batch=(running(176),)),
                in_flight=[sent("i-01", 320)],
            ),
            "i-01",
            id="nor when it has ended already",
        ),
        pytest.param(
            view(load("i-01"), load("i-02"), states={"i-01": InstanceState.DRAINING}),
            "i-02",
            id="a draining one gets nothing",
        ),
        pytest.param(
            view(load("i-01", at_unix_s=NOW_UNIX_S - 6), load("i-02", batch=(running(1600),))),
            "i-02",
            id="a stale report does not count",
        ),
        pytest.param(
            view(load("i-01", incarnation="dead"), load("i-02", batch=(running(1600),))),
            "i-02",
            id="nor a dead predecessor's",
        ),
        pytest.param(
            view(load("i-01", capacity=64), load("i-02", batch=(running(1600),))),
            "i-02",
            id="nor one that can never hold the prompt",
        ),
    ],
)
def test_the_freest_instance_gets_the_request(pool, expected):
    choice = pick(pool, demand=96)
    assert isinstance(choice, Choice)
    assert choice.instance == expected
    assert choice.reason.startswith(expected)


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        pytest.param(PoolView(), "no instance", id="empty pool"),
        pytest.param(
            view(load(), states={"i-01": InstanceState.STARTING}), "none of 1", id="none serves"
        ),
        pytest.param(view(load(at_unix_s=NOW_UNIX_S - 7)), "7.0 s old", id="only stale reports"),
        pytest.param(PoolView(statuses=(status(),)), "there is none", id="no report yet"),
        pytest.param(view(load(capacity=64)), "largest instance holds 63", id="too large for all"),
    ],
)
def test_a_refusal_says_why(pool, words):
    refusal = pick(pool, demand=96)
    assert isinstance(refusal, Refusal)
    assert words in refusal.why
    assert refusal.is_permanent == ("largest" in words)


def test_a_reason_has_numbers():
    choice = pick(view(load(batch=(running(160), running(320)), queue=(waiting(64),))))
    assert isinstance(choice, Choice)
    # 1600 - 480 used - 16 watermark - 64 queued = 1040 for three requests.
    assert choice.reason == (
        "i-01: the only one that serves: 1040 KV tokens left for 2 running and 1 queued,"
        " 347 decode steps"
    )


def test_ties_are_spread_and_the_same_everywhere():
    pool = view(*(load(f"i-{n:02d}") for n in range(1, 5)))
    mirrored = PoolView(pool.statuses[::-1], pool.loads[::-1])
    chosen = Counter()
    for n in range(400):
        first, second = pick(pool, name=f"r{n}"), pick(mirrored, name=f"r{n}")
        assert first == second
        chosen[first.instance] += 1
    assert len(chosen) == 4
    assert min(chosen.values()) > 60


@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.integers(1, 60))
def test_the_ledger_spreads_a_burst_over_equal_instances(blocks_used, burst):
    """With the ledger no instance gets a request while another has more left for each."""
    loads = [
        load(f"i-{n:02d}", batch=(running(16 * b, name=f"r{n}"),) if b else ())
        for n, b in enumerate(blocks_used)
    ]
    ledger: list[InFlight] = []
    for n in range(burst):
        choice = pick(view(*loads, in_flight=ledger), demand=32, name=f"b{n}")
        assert isinstance(choice, Choice)
        ledger.append(sent(choice.instance, 32, f"b{n}"))
    counts = Counter(s.instance for s in ledger)
    for one, other in itertools.permutations(loads, 2):
        left = int(1600 * 0.99) - one.used_tokens - 32 * (counts[one.instance] - 1)
        batch = len(one.running) + counts[one.instance] - 1
        if counts[one.instance] == 0 or batch == 0:
            continue
        other_left = int(1600 * 0.99) - other.used_tokens - 32 * counts[other.instance]
        other_batch = len(other.running) + counts[other.instance]
        assert other_batch > 0
        assert order(left, batch) >= order(other_left, other_batch) - 1e-9


def order(left_tokens: float, requests: int) -> float:
    """A shortage is not divided: a long queue would look freer than a short one."""
    return left_tokens if left_tokens < 0 else left_tokens / requests


def test_a_report_just_within_its_age_counts():
    pool = view(load(at_unix_s=NOW_UNIX_S - REPORT_MAX_AGE_S))
    assert isinstance(pick(pool), Choice)
