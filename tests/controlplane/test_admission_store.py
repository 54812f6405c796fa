"""Admission at the level of the store: what several web processes may do to it at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import redis

from controlplane.admission import scripts
from controlplane.admission.estimate import Estimate
from controlplane.admission.leases import Asked, Change
from controlplane.admission.store import AdmissionStore
from controlplane.admission.verdict import (
    BUDGET_UNKNOWN,
    NO_POOL_LIMITS,
    LimitName,
    PoolLimits,
    Verdict,
    cost_units,
    read_verdict,
)
from controlplane.tenants.selectors import NO_LIMITS, Limits
from engine_pool.store import connect_async
from engine_pool.token_log import LogTimes, TokenLogReader

LEASE_MS = 15_000
TENANT, OTHER = 7, 8


class Door:
    """A web process's side, without the rest of it."""

    def __init__(self, url: str, owner: str) -> None:
        self.store = connect_async(url)
        self.calls = AdmissionStore(self.store, TokenLogReader(self.store, LogTimes()), owner)

    async def ask(
        self,
        request_id: str,
        limits: Limits = NO_LIMITS,
        tokens: int = 10,
        cost: int = 0,
        pool: PoolLimits = NO_POOL_LIMITS,
        tenant: int = TENANT,
        lease_ms: int = LEASE_MS,
    ) -> Verdict:
        asked = Asked(request_id, tenant, "default", "m", Estimate(0, tokens), limits)
        numbers, month = await self.calls.reserve(asked, pool, cost, lease_ms)
        if numbers[0] == BUDGET_UNKNOWN:
            await self.calls.set_spent(tenant, month, 0)
            numbers, _ = await self.calls.reserve(asked, pool, cost, lease_ms)
        return read_verdict(numbers, limits)

    async def change(self, what: str, request_id: str, **fields: int) -> bool:
        """Says whether the lease was this side's."""
        others, _ = await self.calls.change([Change(what, request_id, **fields)])
        return request_id not in others


@pytest.fixture
async def doors(store_url: str) -> AsyncIterator[list[Door]]:
    made = [Door(store_url, f"web-{i}") for i in range(4)]
    yield made
    for door in made:
        await door.store.aclose()


class Book:
    """What the store holds of a tenant."""

    def __init__(self, store: "redis.Redis[bytes]") -> None:
        self._store = store

    def window(self, kind: str, who: str = f"t{TENANT}") -> int:
        return int(self._store.hget(f"ferry:adm:{who}:{kind}", "n") or 0)

    def live(self, who: str = f"t{TENANT}") -> int:
        return int(self._store.zcard(f"ferry:adm:{who}:live"))

    @property
    def spent(self) -> int:
        (key,) = self._store.keys(f"ferry:adm:t{TENANT}:spent:*")
        return int(self._store.get(key) or 0)

    def age(self, kind: str, by_s: int, who: str = f"t{TENANT}") -> None:
        """Makes all of a window so much older."""
        key = f"ferry:adm:{who}:{kind}"
        held = {k.decode(): v for k, v in self._store.hgetall(key).items()}
        self._store.delete(key)
        self._store.hset(
            key,
            mapping={
                **{str(int(k) - by_s): v for k, v in held.items() if k.isdigit()},
                **{k: str(int(held[k]) - by_s) for k in ("lo", "hi")},
                "n": held["n"],
            },
        )


@pytest.fixture
def book(store: "redis.Redis[bytes]") -> Book:
    return Book(store)


@pytest.mark.parametrize(
    ("limits", "pool", "name"),
    [
        pytest.param(Limits(requests_per_minute=10), NO_POOL_LIMITS, "rpm", id="requests"),
        pytest.param(Limits(tokens_per_minute=1009), NO_POOL_LIMITS, "tpm", id="tokens"),
        pytest.param(Limits(concurrency=10), NO_POOL_LIMITS, "concurrency", id="concurrency"),
        pytest.param(
            Limits(monthly_budget=Decimal("0.0000005")), NO_POOL_LIMITS, "budget", id="budget"
        ),
        pytest.param(NO_LIMITS, PoolLimits(10), "pool_rpm", id="pool's requests"),
        pytest.param(NO_LIMITS, PoolLimits(None, 1000), "pool_tpm", id="pool's tokens"),
        pytest.param(
            NO_LIMITS, PoolLimits(None, None, 10), "pool_concurrency", id="pool's concurrency"
        ),
    ],
)
async def test_of_200_at_once_exactly_the_limit_is_taken(
    doors: list[Door], limits: Limits, pool: PoolLimits, name: str
) -> None:
    asks = (doors[i % 4].ask(f"r{i}", limits, tokens=100, cost=5, pool=pool) for i in range(200))
    verdicts = await asyncio.gather(*asks)
    refused = [v.refused_by for v in verdicts if v.refused_by]
    assert len(verdicts) - len(refused) == 10
    assert set(refused) == {LimitName(name)}


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        pytest.param(Limits(requests_per_minute=1), "rpm", id="requests"),
        pytest.param(Limits(tokens_per_minute=25), "tpm", id="tokens"),
        pytest.param(Limits(concurrency=1), "concurrency", id="concurrency"),
        pytest.param(Limits(monthly_budget=Decimal("0.00000008")), "budget", id="budget"),
    ],
)
async def test_what_one_limit_refuses_takes_nothing_of_the_others(
    doors: list[Door], book: Book, limits: Limits, name: str
) -> None:
    assert (await doors[0].ask("first", limits, tokens=20, cost=5)).refused_by is None
    held = (book.window("req"), book.window("tok"), book.live(), book.live("pdefault"))
    verdict = await doors[1].ask("second", limits, tokens=20, cost=5)
    assert verdict.refused_by == name
    assert (book.window("req"), book.window("tok"), book.live(), book.live("pdefault")) == held
    assert held == (1, 20, 1, 1)
    if name == "budget":
        assert book.spent == 5


async def test_limits_are_a_tenants_own(doors: list[Door]) -> None:
    limits = Limits(requests_per_minute=1)
    assert (await doors[0].ask("a", limits)).refused_by is None
    assert (await doors[0].ask("b", limits, tenant=OTHER)).refused_by is None
    assert (await doors[0].ask("c", limits)).refused_by is LimitName.RPM


async def test_a_window_slides(doors: list[Door], book: Book) -> None:
    limits = Limits(requests_per_minute=10)
    for i in range(4):
        await doors[0].ask(f"old{i}", limits)
    book.age("req", 59)
    for i in range(6):
        assert (await doors[0].ask(f"new{i}", limits)).refused_by is None
    verdict = await doors[0].ask("more", limits)
    assert verdict.refused_by is LimitName.RPM
    # The four have less than two seconds left.
    assert 0 < verdict.retry_ms <= 2000
    assert verdict.standing.requests_reset_ms > 59_000
    book.age("req", 2)
    for i in range(4):
        assert (await doors[0].ask(f"late{i}", limits)).refused_by is None
    assert (await doors[0].ask("last", limits)).refused_by is LimitName.RPM


async def test_a_refusal_says_when_there_is_room_for_this_request(
    doors: list[Door], book: Book
) -> None:
    limits = Limits(tokens_per_minute=100)
    await doors[0].ask("a", limits, tokens=30)
    book.age("tok", 40)
    await doors[0].ask("b", limits, tokens=60)
    small = await doors[0].ask("c", limits, tokens=40)
    large = await doors[0].ask("d", limits, tokens=90)
    assert 19_000 <= small.retry_ms <= 21_000
    assert large.retry_ms > 59_000


async def test_real_usage_takes_the_reservations_place(doors: list[Door], book: Book) -> None:
    limits = Limits(tokens_per_minute=1000, monthly_budget=Decimal(1))
    await doors[0].ask("a", limits, tokens=900, cost=90)
    assert (await doors[1].ask("b", limits, tokens=200)).refused_by is LimitName.TPM
    assert await doors[0].change("s", "a", prompt_tokens=5, tokens=30, cost_units=3)
    assert (book.window("tok"), book.window("tok", "pdefault")) == (30, 30)
    assert (book.live(), book.spent) == (0, 3)
    assert (await doors[1].ask("c", limits, tokens=200)).refused_by is None


async def test_settling_twice_charges_once(doors: list[Door], book: Book) -> None:
    await doors[0].ask("a", Limits(monthly_budget=Decimal(1)), tokens=10, cost=1)
    for _ in range(2):
        await doors[0].change("s", "a", tokens=30, cost_units=3)
    assert (book.window("tok"), book.spent) == (30, 3)


async def test_a_stream_longer_than_expected_is_charged_while_it_runs(
    doors: list[Door], book: Book
) -> None:
    limits = Limits(tokens_per_minute=100, monthly_budget=Decimal("0.0000001"))
    await doors[0].ask("a", limits, tokens=20, cost=2)
    await doors[0].change("r", "a", ms=LEASE_MS, tokens=95, cost_units=9)
    assert (book.window("tok"), book.spent, book.live()) == (95, 9, 1)
    assert (await doors[1].ask("b", limits, tokens=20)).refused_by is LimitName.TPM


async def test_a_renewal_gives_nothing_of_the_reservation_back(
    doors: list[Door], book: Book
) -> None:
    await doors[0].ask("a", Limits(monthly_budget=Decimal(1)), tokens=50, cost=5)
    await doors[0].change("r", "a", ms=LEASE_MS, tokens=10, cost_units=1)
    assert (book.window("tok"), book.spent) == (50, 5)


async def test_what_no_engine_took_costs_nothing(doors: list[Door], book: Book) -> None:
    await doors[0].ask("a", Limits(monthly_budget=Decimal(1)), tokens=50, cost=5)
    assert await doors[0].change("v", "a")
    assert (book.window("req"), book.window("tok"), book.live(), book.spent) == (0, 0, 0, 0)
    assert (book.window("req", "pdefault"), book.window("tok", "pdefault")) == (0, 0)


async def test_a_request_given_up_before_it_comes_is_not_taken(
    doors: list[Door], book: Book
) -> None:
    await doors[0].change("v", "a")
    asked = Asked("a", TENANT, "default", "m", Estimate(1, 1), NO_LIMITS)
    numbers, _ = await doors[0].calls.reserve(asked, NO_POOL_LIMITS, 0, LEASE_MS)
    assert numbers[0] > len(LimitName)
    assert book.live() == 0


async def test_places_of_a_process_that_says_nothing_are_free_again(
    doors: list[Door], book: Book
) -> None:
    limits = Limits(concurrency=1)
    await doors[0].ask("a", limits, tokens=50, lease_ms=1)
    await asyncio.sleep(0.01)
    assert (await doors[1].ask("b", limits)).refused_by is None
    # Its tokens stay reserved until its log has told what it used.
    assert book.window("tok") == 60
    (expired,) = await doors[1].calls.expired(10)
    assert expired.request_id == "a"
    assert await doors[1].change("x", "a", tokens=7)
    assert book.window("tok") == 17
    assert await doors[1].calls.expired(10) == []


async def test_an_expired_lease_is_settled_by_one_of_many(doors: list[Door], book: Book) -> None:
    await doors[0].ask("a", Limits(monthly_budget=Decimal(1)), tokens=50, cost=5, lease_ms=1)
    await asyncio.sleep(0.01)
    await asyncio.gather(*(d.change("x", "a", tokens=7, cost_units=1) for d in doors))
    assert (book.window("tok"), book.spent) == (7, 1)


async def test_a_lease_that_is_renewed_is_not_settled_as_expired(
    doors: list[Door], book: Book
) -> None:
    await doors[0].ask("a", tokens=50, lease_ms=1)
    await doors[0].change("r", "a", ms=LEASE_MS)
    assert not await doors[1].change("x", "a", tokens=7)
    assert (book.live(), book.window("tok")) == (1, 50)


async def test_a_process_that_was_stopped_for_long_gets_its_lease_back(
    doors: list[Door], book: Book
) -> None:
    await doors[0].ask("a", tokens=50, lease_ms=1)
    await asyncio.sleep(0.01)
    await doors[1].change("x", "a", tokens=7)
    _, settled = await doors[0].calls.change([Change("r", "a", LEASE_MS, 1, 0, 9, 0)])
    assert settled == {"a"}
    await doors[0].change("a", "a", ms=LEASE_MS)
    assert book.live() == 1
    await doors[0].change("s", "a", tokens=70)
    assert (book.live(), book.window("tok")) == (0, 70)


async def test_who_resumes_a_request_has_its_lease(doors: list[Door], book: Book) -> None:
    await doors[0].ask("a", tokens=50)
    await doors[1].change("a", "a", ms=LEASE_MS)
    assert not await doors[0].change("s", "a", tokens=3)
    assert not await doors[0].change("r", "a", ms=1)
    assert not await doors[0].change("v", "a")
    assert (book.live(), book.window("tok")) == (1, 50)
    assert await doors[1].change("s", "a", tokens=40)
    assert (book.live(), book.window("tok")) == (0, 40)


async def test_a_replay_gives_nothing_back(doors: list[Door], book: Book) -> None:
    await doors[0].ask("a", Limits(monthly_budget=Decimal(1)), tokens=50, cost=5)
    await doors[0].change("s", "a", tokens=40, cost_units=4)
    await doors[1].change("a", "a", ms=LEASE_MS)
    # Its client left after the first events.
    await doors[1].change("s", "a", tokens=3, cost_units=1)
    assert (book.window("tok"), book.spent, book.live()) == (40, 4, 0)


async def test_what_is_settled_after_its_minute_changes_no_later_one(
    doors: list[Door], store: Any, book: Book
) -> None:
    await doors[0].ask("a", tokens=50)
    book.age("tok", 61)
    store.hincrby("ferry:adm:lease:a", "b", -61)
    await doors[0].ask("b", tokens=10)
    await doors[0].change("s", "a", tokens=5)
    assert book.window("tok") == 10
    # What goes beyond the reservation was used now.
    await doors[0].ask("c", tokens=10)
    await doors[0].change("s", "c", tokens=25)
    assert book.window("tok") == 35


async def test_a_budget_that_the_store_forgot_is_asked_for(doors: list[Door], book: Book) -> None:
    limits = Limits(monthly_budget=Decimal("0.0000001"))
    asked = Asked("a", TENANT, "default", "m", Estimate(1, 1), limits)
    numbers, month = await doors[0].calls.reserve(asked, NO_POOL_LIMITS, 1, LEASE_MS)
    assert numbers[0] == BUDGET_UNKNOWN
    assert book.live() == 0
    await doors[0].calls.set_spent(TENANT, month, cost_units(Decimal("0.00000009")))
    await doors[1].calls.set_spent(TENANT, month, 0)
    assert book.spent == 9
    assert (await doors[0].ask("a", limits, cost=2)).refused_by is LimitName.BUDGET
    assert (await doors[0].ask("b", limits, cost=1)).refused_by is None


async def test_a_request_from_before_its_budget_is_charged_whole(
    doors: list[Door], book: Book
) -> None:
    await doors[0].ask("a", tokens=50, cost=5)
    await doors[0].ask("b", Limits(monthly_budget=Decimal(1)), cost=1)
    await doors[0].change("s", "a", tokens=50, cost_units=4)
    assert book.spent == 5


def test_the_months_name_is_the_calendars(store: Any) -> None:
    body = scripts._PRELUDE.replace("tonumber(t[1])", "tonumber(ARGV[1])", 1) + "return month()"
    script: Callable[..., bytes] = store.register_script(body)
    for day in ("1970-01-01", "2000-02-29", "2023-12-31", "2024-02-29", "2026-03-01", "2100-03-01"):
        at = datetime.fromisoformat(f"{day}T12:00:00").replace(tzinfo=UTC)
        assert script(keys=[], args=[int(at.timestamp())]).decode() == day[:7]
