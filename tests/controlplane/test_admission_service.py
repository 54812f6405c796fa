"""Admission in one process: while the store or the database is away, and at its end."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError

from controlplane.admission import service, store
from controlplane.admission.estimate import Estimate
from controlplane.admission.leases import Asked, Lease
from controlplane.admission.service import Admission, BudgetUnknown, StoreAway
from controlplane.admission.sources import Sources
from controlplane.admission.store import AdmissionStore
from controlplane.admission.verdict import LimitName
from controlplane.tenants.selectors import NO_LIMITS, Limits
from engine_pool.store import connect_async
from engine_pool.token_log import LogTimes, TokenLogReader
from tests.controlplane.fakes import Producer, until

TENANT = 5


@dataclass
class Run:
    """What a request has used."""

    prompt_tokens: int = 10
    cached_tokens: int = 0
    output_tokens: int = 0
    is_accepted: bool = True


def admission(url: str, sources: Sources, owner: str = "web") -> Admission:
    client = connect_async(url)
    calls = AdmissionStore(client, TokenLogReader(client, LogTimes()), owner)
    return Admission(calls, sources)


def asked(request_id: str, limits: Limits = NO_LIMITS) -> Asked:
    return Asked(request_id, TENANT, "default", "m", Estimate(10, 20), limits)


def lease(request_id: str, run: Run) -> Lease:
    return Lease(request_id, "m", run, "", lambda error: None)


@pytest.fixture
async def made(store_url: str, sources: Sources) -> AsyncIterator[Admission]:
    found = admission(store_url, sources)
    yield found
    await found.stop()


def window(store: Any, kind: str = "tok") -> int:
    return int(store.hget(f"ferry:adm:t{TENANT}:{kind}", "n") or 0)


def live(store: Any) -> int:
    return int(store.zcard(f"ferry:adm:t{TENANT}:live"))


async def test_without_a_store_the_answer_comes_at_once(sources: Sources) -> None:
    away = admission("redis://127.0.0.1:1/0", sources)
    with pytest.raises(StoreAway):
        await away.reserve(asked("a"))
    await away.stop()


async def test_a_store_that_hangs_holds_nobody_up(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(service, "ANSWER_TIMEOUT_S", 0.1)
    accepted = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    away = admission(f"redis://127.0.0.1:{port}/0", sources)
    found = await asyncio.gather(
        *(away.reserve(asked(f"r{i}")) for i in range(100)), return_exceptions=True
    )
    assert accepted.is_set()
    assert {type(error) for error in found} == {StoreAway}
    await away.stop()
    server.close()


async def test_a_store_that_lost_its_memory_learns_the_budget_again(
    made: Admission, store: Any, sources: Sources
) -> None:
    asks: list[tuple[int, datetime]] = []

    def month_cost(tenant_id: int, at: datetime) -> Decimal:
        asks.append((tenant_id, at))
        return Decimal(9)

    sources.month_cost = month_cost
    verdicts = await asyncio.gather(
        *(made.reserve(asked(f"r{i}", Limits(monthly_budget=Decimal(10)))) for i in range(20))
    )
    assert {v.refused_by for v in verdicts} == {None}
    # One question for all that waited.
    ((tenant_id, at),) = asks
    assert (tenant_id, at.day) == (TENANT, 1)
    store.flushall()
    verdict = await made.reserve(asked("later", Limits(monthly_budget=Decimal(8))))
    assert verdict.refused_by is LimitName.BUDGET
    assert len(asks) == 2


async def test_a_budget_that_nobody_knows_admits_nothing(
    made: Admission, store: Any, sources: Sources
) -> None:
    def away(tenant_id: int, at: datetime) -> Decimal:
        raise DatabaseError("away")

    sources.month_cost = away
    with pytest.raises(BudgetUnknown):
        await made.reserve(asked("a", Limits(monthly_budget=Decimal(10))))
    assert (live(store), window(store)) == (0, 0)
    assert (await made.reserve(asked("b"))).refused_by is None


async def test_a_client_that_leaves_while_it_asks_holds_nothing(
    made: Admission, store: Any
) -> None:
    for i in range(20):
        asking = asyncio.create_task(made.reserve(asked(f"r{i}")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
    await until(lambda: not made._waiting and live(store) == 0)
    assert (window(store), window(store, "req")) == (0, 0)


async def test_leases_are_renewed_all_at_once_and_grow_with_their_requests(
    made: Admission, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RENEW_EVERY_S", 0.05)
    monkeypatch.setattr(service, "LEASE_MS", 300)
    runs = {f"r{i}": Run() for i in range(250)}
    for request_id, run in runs.items():
        await made.reserve(asked(request_id))
        made.hold(lease(request_id, run))
    runs["r7"].output_tokens = 1000
    await until(lambda: window(store) == 249 * 30 + 1010)
    await asyncio.sleep(0.5)
    assert store.zcount(f"ferry:adm:t{TENANT}:live", time.time() * 1000, "+inf") == 250
    for held in list(made.leases.values()):
        made.settle(held)
    await until(lambda: live(store) == 0)
    assert window(store) == 249 * 10 + 1010


async def test_a_dead_processs_request_is_charged_by_its_log(
    made: Admission,
    store: Any,
    store_url: str,
    sources: Sources,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "LEASE_MS", 50)
    monkeypatch.setattr(service, "LOOK_EVERY_S", 0.05)
    dead = admission(store_url, sources, "dead")
    for request_id in ("ran", "sent", "waited"):
        await dead.reserve(asked(request_id))
        dead.hold(lease(request_id, Run()))
    for task in dead._tasks:
        task.cancel()
    # Two choices; one has ended.
    store.hset("ferry:request:ran", mapping={"at:ran-0": "i-01 a", "at:ran-1": "i-01 a"})
    store.hset("ferry:request:sent", mapping={"at:sent": "i-01 a"})
    for engine_id in ("ran-0", "ran-1"):
        store.set(f"ferry:route:{engine_id}", "nobody")
        for i in range(3):
            assert Producer(store).write(engine_id, i, [5], "stop" if i == 2 else None)
    made.start()
    await until(lambda: not store.zcard("ferry:adm:leases"))
    await until(lambda: not made._waiting)
    # Ten of the prompt were estimated for each that was sent, and six tokens came.
    assert (live(store), window(store), window(store, "req")) == (0, 26, 2)


async def test_what_has_ended_is_passed_on_when_the_process_stops(
    store: Any, store_url: str, sources: Sources
) -> None:
    stopping = admission(store_url, sources)
    await stopping.reserve(asked("a"))
    held = lease("a", Run(output_tokens=5))
    stopping.hold(held)
    stopping.settle(held)
    await stopping.stop()
    assert (live(store), window(store)) == (0, 15)


async def test_an_older_connections_end_changes_nothing(made: Admission, store: Any) -> None:
    await made.reserve(asked("a"))
    old, new = lease("a", Run()), lease("a", Run(output_tokens=7))
    made.hold(old)
    made.take_over(new)
    made.settle(old)
    await until(lambda: not made._waiting)
    assert live(store) == 1
    made.settle(new)
    await until(lambda: live(store) == 0)
    assert window(store) == 17
