"""A made-up pool that reports to a real store, to see the pages with 0 to 500 instances.

    python -m tests.web.fake_pool --url redis://127.0.0.1:16379/0 --instances 8

Only for tests and screenshots: it speaks through the same Bulletin as the real pool.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import redis

from engine_pool.policy.freeness import breakdown
from engine_pool.types import (
    EngineKind,
    FleetEvent,
    FleetSample,
    InstanceLoad,
    InstanceName,
    InstanceSample,
    InstanceState,
    InstanceStatus,
    PriorityClass,
    RequestId,
    RequestLoad,
)
from engine_pool.view import STATUSES, Bulletin
from tests.web import moves, moves_player

CAPACITY_TOKENS = 13_616
BLOCK_TOKENS = 16
ODD_STATES = {
    3: (InstanceState.DRAINING, "maintenance"),
    4: (InstanceState.CORDONED, "takes no new requests"),
    5: (InstanceState.LOST, "exit code -9, restart in 4 s"),
    7: (InstanceState.STARTING, "loading weights"),
}
"""What some instances of a pool of 8 or more are in; the others serve."""


def names(count: int) -> list[InstanceName]:
    return [
        InstanceName(f"i-{i + 1:03d}" if count > 99 else f"i-{i + 1:02d}") for i in range(count)
    ]


def status_of(index: int, name: InstanceName, count: int, now_unix_s: float) -> InstanceStatus:
    odd = ODD_STATES.get(index % 100) if count >= 8 else None
    state, cause = odd or (InstanceState.SERVING, "answers")
    return InstanceStatus(
        instance=name,
        pool="default",
        incarnation="one",
        state=state,
        cause=cause,
        since_unix_s=now_unix_s - 600 + index,
        node=f"node-{index // (8 if count > 16 else 3) + 1:02d}",
        model="SmolLM2-135M-Instruct",
        engine=EngineKind.SIMULATED,
        actor=name,
    )


def load_of(
    index: int, name: InstanceName, seq: int, now_unix_s: float, *, seed: int = 7
) -> InstanceLoad:
    """Returns a report: load swings slowly, the second instance is crowded."""
    pick = random.Random(seed * 1000 + index)
    swing = 0.5 + 0.4 * math.sin(now_unix_s / (40 + 7 * (index % 9)) + index)
    share = min(0.97, max(0.05, pick.uniform(0.35, 0.75) + 0.25 * (swing - 0.5)))
    crowded = index % 10 == 1
    share = 0.86 if crowded else share
    batch = max(1, int(share * 34))
    high = pick.randrange(0, 4) if index % 3 == 0 else 0
    tokens = int(share * CAPACITY_TOKENS / batch) // BLOCK_TOKENS * BLOCK_TOKENS
    running = tuple(
        RequestLoad(
            RequestId(f"{name}-r{i}"),
            PriorityClass.HIGH
            if i < high
            else (PriorityClass.LOW if i % 4 == 3 else PriorityClass.NORMAL),
            tokens,
            prompt_tokens=tokens // 2,
            output_tokens=tokens // 2,
        )
        for i in range(batch)
    )
    waiting = tuple(
        RequestLoad(RequestId(f"{name}-w{i}"), PriorityClass.NORMAL, 0, 900, 0, demand_tokens=3200)
        for i in range(5 if crowded else 0)
    )
    return InstanceLoad(
        instance=name,
        incarnation="one",
        seq=seq,
        at_unix_s=now_unix_s,
        capacity_tokens=CAPACITY_TOKENS,
        used_tokens=tokens * batch,
        block_size_tokens=BLOCK_TOKENS,
        max_running=64,
        running=running,
        waiting=waiting,
        step_ms=28 + 10 * share + pick.uniform(-1, 1),
        steps_total=seq * 4,
        preemptions_total=seq // 90 if crowded else 0,
        prompt_tokens_total=seq * 110,
        output_tokens_total=seq * 62 + seq // 7,
        requests_ended_total=seq // 3,
        last_token_unix_s=now_unix_s,
    )


def reports(
    count: int, seq: int, now_unix_s: float
) -> Iterator[tuple[InstanceStatus, InstanceLoad]]:
    for index, name in enumerate(names(count)):
        yield (
            status_of(index, name, count, now_unix_s),
            load_of(index, name, seq, now_unix_s),
        )


def sample_of(count: int, seq: int, now_unix_s: float) -> FleetSample:
    """Returns the second's sample as the pool process would write it."""
    instances: dict[InstanceName, InstanceSample] = {}
    pairs = list(reports(count, seq, now_unix_s))
    for status, load in pairs:
        if status.state in (InstanceState.LOST, InstanceState.STARTING):
            instances[status.instance] = InstanceSample(None, None, None, None, None)
            continue
        usage = breakdown(load, status.state)
        virtual = usage.virtual_tokens
        instances[status.instance] = InstanceSample(
            usage.freeness_or_none,
            usage.used_tokens,
            round(virtual) if math.isfinite(virtual) else None,
            usage.running,
            usage.waiting,
        )
    loads = [load for _, load in pairs]
    return FleetSample(
        now_unix_s,
        instances,
        sum(x.output_tokens_total for x in loads),
        sum(x.prompt_tokens_total for x in loads),
        sum(x.preemptions_total for x in loads),
    )


def events_of(now_unix_s: float) -> list[FleetEvent]:
    """Returns some events, oldest first."""
    told = (
        (590, "instance_starting", "i-01 starts", "first start", "i-01", "info"),
        (560, "instance_serving", "i-01 serves", "started in 30 s", "i-01", "info"),
        (240, "instance_draining", "Drain of i-04", "9 requests left", "i-04", "info"),
        (60, "store_lost", "The store did not answer for 3 s", "Streams went on.", "", "warn"),
        (20, "instance_lost", "i-06 is lost", "exit code -9, restart in 4 s", "i-06", "bad"),
    )
    return [FleetEvent(now_unix_s - ago_s, *rest) for ago_s, *rest in told]


def fill_history(store: "redis.Redis[bytes]", count: int, now_unix_s: float) -> None:
    """Writes ten minutes of samples, with a gap as after a restart of the pool process."""
    from engine_pool.view import SAMPLES, _encode

    pipe = store.pipeline(transaction=False)
    # Points further apart than 5 s would be gaps.
    for ago_s in range(600, 0, -1 if count <= 16 else -4):
        if 300 > ago_s > 270:
            continue
        at = now_unix_s - ago_s
        body = _encode(sample_of(count, 10_000 - ago_s * 2, at))
        pipe.xadd(SAMPLES, {"s": body}, id=f"{int(at * 1000)}-0")
    pipe.execute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--hz", type=float, default=5.0)
    parser.add_argument("--moves", action="store_true", help="Let requests move.")
    parser.add_argument("--seconds", type=float, default=3600)
    arguments = parser.parse_args()
    count = arguments.instances
    store = redis.Redis.from_url(arguments.url)
    bulletin = Bulletin(store)
    for name in store.hkeys(STATUSES):
        bulletin.forget(InstanceName(name.decode()))
    store.flushdb()
    now_unix_s = time.time()
    fill_history(store, count, now_unix_s)
    for event in events_of(now_unix_s):
        bulletin.report_event(event)
    for move in moves.several(now_unix_s) if count > 2 else ():
        bulletin.report_move(move)
    player = moves_player.Player(list(map(str, names(count))), now_unix_s)
    seq = 10_000
    until_s = now_unix_s + arguments.seconds
    sampled_s = statuses_s = 0.0
    while (now_unix_s := time.time()) < until_s:
        seq += 1
        for status, load in reports(count, seq, now_unix_s):
            if now_unix_s - statuses_s > 10:
                bulletin.report_status(status)
            if status.state is InstanceState.LOST:
                load = replace(load, at_unix_s=status.since_unix_s)
            if status.state is not InstanceState.STARTING:
                bulletin.report_load(load)
        for move in player.reports(now_unix_s) if arguments.moves else ():
            bulletin.report_move(move)
        if now_unix_s - statuses_s > 10:
            statuses_s = now_unix_s
        if now_unix_s - sampled_s >= 1:
            sampled_s = now_unix_s
            bulletin.report_sample(sample_of(count, seq, now_unix_s))
            store.set("ferry:worker-heartbeat", now_unix_s)
        time.sleep(1 / arguments.hz)


if __name__ == "__main__":
    main()
