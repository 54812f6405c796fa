"""Limits over several web processes: races, gauges after every kind of end, changes of policy."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from controlplane.admission.estimate import estimate_of
from controlplane.admission.service import LEASE_MS
from tests.integration.installation import Installation, wait_for
from tests.integration.office import Office
from tests.integration.streams import CHAT, chat_body, endless_body

LIMIT = 10
RACERS = 200
BODY = endless_body()
TOKENS = estimate_of(BODY, choices=1, context_tokens=8192).tokens
MODEL = str(BODY["model"])
FREE_WITHIN_S = LEASE_MS / 1000 + 2
"""A lease's time, and that of a request on a busy machine."""
TOO_SHORT_S = 0.3
"""A client's patience that is over before these answers are."""

LIMITS: dict[str, dict[str, int]] = {
    "rpm": {"requests_per_minute": LIMIT},
    "tpm": {"tokens_per_minute": TOKENS * LIMIT + TOKENS - 1},
    "concurrency": {"concurrency": LIMIT},
    # One token costs 1.
    "budget": {"monthly_budget": TOKENS * LIMIT + TOKENS - 1},
}


@pytest.fixture(scope="module")
def office(installation: Installation) -> Iterator[Office]:
    with Office(installation) as made:
        yield made


class Gauges:
    """What the store says of a tenant."""

    def __init__(self, installation: Installation, tenant_id: int) -> None:
        self._store = installation.store()
        self._who = f"ferry:adm:t{tenant_id}"

    def live(self) -> int:
        return int(self._store.zcard(f"{self._who}:live"))

    def tokens(self) -> int:
        return int(self._store.hget(f"{self._who}:tok", "n") or 0)

    def are_zero(self) -> bool:
        """Nothing is under way, of this tenant or in its pool, and nothing waits for settling."""
        keys = (f"{self._who}:live", "ferry:adm:pdefault:live", "ferry:adm:leases")
        return not any(self._store.zcard(key) for key in keys)


@asynccontextmanager
async def opened(
    urls: list[str], headers: dict[str, str], count: int, body: dict[str, Any]
) -> AsyncIterator[list[httpx.Response]]:
    """Sends requests to all addresses at once; leaving the block closes what was opened."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:

        async def one(index: int) -> httpx.Response:
            url = urls[index % len(urls)] + CHAT
            request = client.build_request("POST", url, json=body, headers=headers)
            return await client.send(request, stream=True)

        answers = await asyncio.gather(*map(one, range(count)))
        try:
            yield answers
        finally:
            await asyncio.gather(*(answer.aclose() for answer in answers))


async def error_of(answer: httpx.Response) -> dict[str, Any]:
    await answer.aread()
    error: dict[str, Any] = answer.json()["error"]
    return error


def post(url: str, headers: dict[str, str], **more: Any) -> httpx.Response:
    body = chat_body(1, stream=False) | more
    return httpx.post(url + CHAT, json=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def priced(installation: Installation, second_url: str, office: Office) -> None:
    """A token costs 1, on both web processes."""
    office.price(MODEL, "1000000")
    headers = office.tenant("pauper", monthly_budget=0)
    urls = (installation.url, second_url)
    wait_for(
        lambda: all(post(url, headers).status_code == 429 for url in urls), "the price is known"
    )


@pytest.mark.parametrize("limit", list(LIMITS))
async def test_of_200_at_once_at_two_processes_exactly_the_limit_is_admitted(
    idle: Installation, second_url: str, office: Office, priced: None, limit: str
) -> None:
    headers = office.tenant(f"race-{limit}", **LIMITS[limit])
    gauges = Gauges(idle, office.tenant_id(f"race-{limit}"))
    async with opened([idle.url, second_url], headers, RACERS, BODY) as answers:
        refused = [a for a in answers if a.status_code != 200]
        assert len(answers) - len(refused) == LIMIT
        assert {a.status_code for a in refused} == {429}
        errors = [await error_of(a) for a in refused]
        assert {e["param"] for e in errors} == {limit}
        assert gauges.live() == LIMIT
    wait_for(gauges.are_zero, "all places are free", FREE_WITHIN_S)
    idle.wait_idle()


async def test_places_come_back_after_a_process_was_killed(
    idle: Installation, office: Office
) -> None:
    headers = office.tenant("killed", concurrency=LIMIT)
    gauges = Gauges(idle, office.tenant_id("killed"))
    url, process = idle.start_web("web-killed")
    opening = asyncio.ensure_future(_hold(url, headers, LIMIT))
    await asyncio.to_thread(wait_for, lambda: idle.running() == LIMIT, "all decode")
    assert gauges.live() == LIMIT
    assert post(idle.url, headers).status_code == 429
    process.kill()
    process.wait(60)
    opening.cancel()
    took_s = -time.monotonic()
    wait_for(lambda: post(idle.url, headers).status_code == 200, "places are free", FREE_WITHIN_S)
    took_s += time.monotonic()
    print(f"places of a killed web process were free after {took_s:.1f} s")
    wait_for(gauges.are_zero, "all is settled")
    # What the engines had produced by then was read in their logs.
    assert 0 < gauges.tokens() < TOKENS * LIMIT
    async with opened([idle.url], headers, LIMIT + 5, BODY) as answers:
        assert [a.status_code for a in answers].count(200) == LIMIT
    idle.wait_idle()


async def _hold(url: str, headers: dict[str, str], count: int) -> None:
    async with opened([url], headers, count, BODY):
        await asyncio.sleep(60)


async def test_clients_that_give_up_leave_no_place_taken_in_any_phase(
    idle: Installation, second_url: str, office: Office
) -> None:
    headers = office.tenant("impatient", concurrency=LIMIT)
    crowd = office.tenant("crowd")
    gauges = Gauges(idle, office.tenant_id("impatient"))
    urls = [idle.url, second_url]
    long = [{"role": "user", "content": "word " * 5000}]
    # In decode, and while a long prompt is computed.
    await give_up(urls, headers, BODY | {"stream": False})
    await give_up(urls, headers, BODY | {"stream": False, "messages": long, "max_tokens": 500})
    async with opened(urls, crowd, RACERS, BODY) as answers:
        refused = [await error_of(a) for a in answers if a.status_code != 200]
        assert refused == []
        await asyncio.to_thread(wait_for, lambda: idle.waiting() > 0, "engines have queues")
        await give_up(urls, headers, BODY | {"stream": False})
        await asyncio.to_thread(wait_for, lambda: gauges.live() == 0, "queued ones left", 15)
    wait_for(gauges.are_zero, "all places are free", FREE_WITHIN_S)
    idle.wait_idle()
    async with opened(urls, headers, LIMIT + 5, BODY) as answers:
        assert [a.status_code for a in answers].count(200) == LIMIT
    idle.wait_idle()


async def give_up(urls: list[str], headers: dict[str, str], body: dict[str, Any]) -> None:
    """Sends as many requests as are admitted; none waits for its answer."""
    async with httpx.AsyncClient(timeout=TOO_SHORT_S) as client:
        asks = (
            client.post(urls[i % len(urls)] + CHAT, json=body, headers=headers)
            for i in range(LIMIT)
        )
        answers = await asyncio.gather(*asks, return_exceptions=True)
    assert all(isinstance(answer, httpx.TimeoutException) for answer in answers)


def test_a_change_of_policy_holds_at_all_processes_within_a_second(
    idle: Installation, second_url: str, office: Office
) -> None:
    urls = (idle.url, second_url)

    def statuses(headers: dict[str, str]) -> list[int]:
        return [post(url, headers).status_code for url in urls]

    headers = office.tenant("changing")
    assert statuses(headers) == [200, 200]
    office.change("changing", requests_per_minute=1)
    time.sleep(1)
    assert statuses(headers) == [429, 429]
    office.change("changing", requests_per_minute=100, state="blocked")
    time.sleep(1)
    assert statuses(headers) == [403, 403]
    office.change("changing", state="active")
    new = office.rotate("changing", for_s=2)
    time.sleep(1)
    assert (statuses(headers), statuses(new)) == ([200, 200], [200, 200])
    time.sleep(1.5)
    assert (statuses(headers), statuses(new)) == ([401, 401], [200, 200])
    office.revoke("changing")
    time.sleep(1)
    assert statuses(new) == [401, 401]


def test_a_stream_ends_soon_after_its_key_was_revoked(idle: Installation, office: Office) -> None:
    headers = office.tenant("revoked")
    with httpx.stream("POST", idle.url + CHAT, json=BODY, headers=headers, timeout=30) as answer:
        lines = answer.iter_lines()
        next(lines)
        office.revoke("revoked")
        rest = [line for line in lines if line.startswith("data: ")]
    assert "permission_denied" in rest[-1]
    idle.wait_idle()
