"""What the last day would have looked like under other limits."""

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.tenants.selectors import Limits
from controlplane.usage import limits_preview
from controlplane.usage.limits_preview import Arrival, LimitPreview, preview, replay
from controlplane.usage.rollups import usage_roll
from tests.controlplane.ledger import NOW, add, row, tenant


def at(*seconds: float, took_s: float = 1, tokens: int = 10, cost: str = "1") -> list[Arrival]:
    return [Arrival(s, s + took_s, tokens, Decimal(cost)) for s in seconds]


@pytest.mark.parametrize(
    ("arrivals", "limits", "refused"),
    [
        pytest.param(
            at(0, 1, 2, 60, 61.5), Limits(requests_per_minute=2), (1, None, None, None),
            id="a sliding minute: one leaves as it gets 60 s old",
        ),
        pytest.param(
            at(0, 59.9, 59.95), Limits(requests_per_minute=2), (1, None, None, None),
            id="no fresh start at the full minute",
        ),
        pytest.param(
            at(0, 1, 2), Limits(tokens_per_minute=25), (None, 1, None, None), id="tokens"
        ),
        pytest.param(
            [*at(0, tokens=30), *at(1, tokens=5)], Limits(tokens_per_minute=25),
            (None, 1, None, None), id="what is refused takes nothing",
        ),
        pytest.param(
            at(0, 1, 2, 10, took_s=10), Limits(concurrency=2), (None, None, 1, None),
            id="one ends as the next one comes",
        ),
        pytest.param(
            at(0, 1, 2), Limits(monthly_budget=Decimal(2)), (None, None, None, 1), id="budget"
        ),
        pytest.param(
            at(0, cost="0"), Limits(monthly_budget=Decimal(0)), (None, None, None, 1),
            id="no budget, nothing",
        ),
        pytest.param(at(0, 1), Limits(), (None, None, None, None), id="no limits"),
        pytest.param([], Limits(1, 1, 1, Decimal(1)), (0, 0, 0, 0), id="no requests"),
    ],
)  # fmt: skip
def test_each_limit_refuses_what_it_would_have(
    arrivals: list[Arrival], limits: Limits, refused: tuple[int | None, ...]
) -> None:
    found = replay(arrivals, limits, since=NOW)
    assert facts(found) == refused


def facts(found: LimitPreview) -> tuple[int | None, ...]:
    return (
        found.requests_per_minute, found.tokens_per_minute, found.concurrency,
        found.monthly_budget,
    )  # fmt: skip


@given(st.lists(st.floats(0, 300), max_size=60), st.integers(1, 20), st.integers(1, 20))
def test_a_higher_limit_never_refuses_more_requests(
    seconds: list[float], low: int, more: int
) -> None:
    arrivals = at(*sorted(seconds), took_s=20)

    def refused(limit: int) -> tuple[int, int]:
        found = replay(arrivals, Limits(requests_per_minute=limit, concurrency=limit), since=NOW)
        return found.requests_per_minute or 0, found.concurrency or 0

    lower, higher = refused(low), refused(low + more)
    assert higher[0] <= lower[0]
    assert higher[1] <= lower[1]


@pytest.mark.django_db
def test_the_last_24_hours_of_this_tenant_are_replayed() -> None:
    alice, bob = tenant(), tenant("bob")
    minute = timedelta(minutes=1)
    add(
        row(alice, NOW - timedelta(hours=25), cost=Decimal(5)),
        *[row(alice, NOW - n * minute / 10, cost=Decimal(1)) for n in range(1, 5)],
        row(bob, NOW - minute),
    )
    usage_roll()
    limits = Limits(2, 45, 1, Decimal("7.5"))
    found = preview(tenant_id=alice.pk, limits=limits, now=NOW)
    assert (found.requests, found.is_cut) == (4, False)
    assert facts(found) == (2, 1, 0, 2)


@pytest.mark.django_db
def test_a_preview_of_too_many_requests_says_that_it_was_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits_preview, "ROWS_MAX", 3)
    alice = tenant()
    add(*[row(alice, NOW - n * timedelta(minutes=1)) for n in range(1, 6)])
    found = preview(tenant_id=alice.pk, limits=Limits(1), now=NOW)
    assert (found.requests, found.is_cut) == (3, True)
    assert found.since == NOW - timedelta(minutes=3, seconds=2)
