"""Never two decisions: two beats, two workers, one that sleeps, a lease that is over, a store that
lost its memory. With threads and a real second process, on both databases."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import redis
from django.db import connection, connections

from controlplane.fleet import publishing
from controlplane.fleet.models import Pool
from controlplane.scaling import facts, lease, services
from controlplane.scaling.loop import Check, Dropped, pool_check
from controlplane.scaling.models import ScalingDecision, ScalingState
from engine_pool.store import connect
from engine_pool.view import Bulletin
from tests.controlplane.scaling_world import INTERVAL_S, ScalingWorld, make_world

DEADLINE_S = 120.0
"""Of threads and a process on a busy machine; they take seconds."""
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world(
    store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch, settings: Any
) -> ScalingWorld:
    """A pool that is short of room, and grows by each check that finds it so."""
    settings.SCALING_CHECK_S = INTERVAL_S
    monkeypatch.setattr(publishing, "_store", lambda: store)
    world = make_world(store, grow_after_s=0.0, max_instances=100)
    world.serve("i-01", -5000)
    world.serve("i-02", -5000)
    return world


def database_url() -> str:
    """Returns the address of the tests' database, for another process."""
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    server = f"{settings['USER']}:{settings['PASSWORD']}@{settings['HOST']}:{settings['PORT']}"
    return f"postgres://{server}/{settings['NAME']}"


def in_threads(*acts: Callable[[], Any]) -> list[Any]:
    """Returns what each got, begun together; each has connections of its own."""
    start = Barrier(len(acts), timeout=DEADLINE_S)

    def one(act: Callable[[], Any]) -> Any:
        try:
            start.wait()
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(acts)) as pool:
        asked = [pool.submit(one, act) for act in acts]
        return [answer.result(DEADLINE_S) for answer in asked]


def ask(world: ScalingWorld) -> list[ScalingDecision]:
    return services.checks_make(store=world.store, clock=world.clock)


def tell(world: ScalingWorld) -> None:
    """Lets the engines report as of the world's time."""
    for report in world.reported.values():
        Bulletin(world.store).report_load(report())


def test_two_that_check_at_once_decide_once(world: ScalingWorld) -> None:
    for number in range(5):
        world.now_s += INTERVAL_S
        tell(world)
        found = in_threads(*[lambda: ask(world)] * 4)
        rows = [row for rows in found for row in rows]
        assert len(rows) == 1, f"check {number}: {rows}"

    assert (Pool.objects.get().instances, ScalingState.objects.get().tick) == (7, 5)
    ticks = ScalingDecision.objects.values_list("tick", flat=True)
    assert sorted(ticks) == [1, 2, 3, 4, 5]


def test_one_who_comes_right_after_another_decides_nothing(world: ScalingWorld) -> None:
    """A second beat, whose tasks come a moment later."""
    world.now_s += INTERVAL_S
    tell(world)
    assert len(ask(world)) == 1
    world.now_s += 1.0
    tell(world)
    assert ask(world) == []
    assert world.instances() == 3
    assert world.state().tick == 1


def test_a_lease_is_one_mans_and_its_number_only_grows(store: "redis.Redis[bytes]") -> None:
    first = lease.take(store)
    assert first is not None
    assert lease.take(store) is None
    assert lease.renew(store, first)
    lease.give_back(store, first)
    second = lease.take(store)
    assert second is not None
    assert second.fence == first.fence + 1
    assert not lease.renew(store, first), "it is over"
    lease.give_back(store, first)
    assert lease.take(store) is None, "nobody gives back what is another's"
    store.flushall()
    third = lease.take(store, above=second.fence)
    assert third is not None
    assert third.fence == second.fence + 1, "the store has lost its memory; the database has not"


def test_a_lease_ends_by_itself(store: "redis.Redis[bytes]") -> None:
    dead = lease.take(store, lease_s=0.05)
    assert dead is not None
    deadline = time.monotonic() + DEADLINE_S
    while (heir := lease.take(store)) is None:
        assert time.monotonic() < deadline, "the lease of a dead holder stays"
        time.sleep(0.01)
    assert heir.fence > dead.fence
    assert not lease.renew(store, dead)


def test_a_lower_fence_decides_nothing(world: ScalingWorld) -> None:
    late = lease.take(world.store)
    assert late is not None
    world.store.delete(lease.LEASE)
    world.now_s += INTERVAL_S
    tell(world)
    assert len(ask(world)) == 1
    before = world.state().tick
    world.now_s += INTERVAL_S
    tell(world)
    check = Check(world.pool.pk, world.pool.name, late)
    with pytest.raises(Dropped, match="has decided since"):
        pool_check(check, store=world.store, clock=world.clock)
    assert (world.state().tick, world.instances()) == (before, 3)


def test_an_old_picture_decides_nothing_whatever_its_fence(world: ScalingWorld) -> None:
    """The store lost its memory between two leases, and gave both the same number."""
    held = lease.take(world.store)
    assert held is not None
    check = Check(world.pool.pk, world.pool.name, held)
    world.now_s += INTERVAL_S
    tell(world)
    assert pool_check(check, store=world.store, clock=world.clock) is not None
    world.now_s -= 1.0
    with pytest.raises(Dropped, match="newer picture"):
        pool_check(check, store=world.store, clock=world.clock)
    times = iter([world.now_s + 10, world.now_s + 60])
    with pytest.raises(Dropped, match="picture is 50 s old"):
        pool_check(check, store=world.store, clock=lambda: next(times))
    assert world.instances() == 3


def test_a_check_whose_lease_is_over_leaves_the_other_pools_alone(
    world: ScalingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool.objects.create(name="second", served_model_name="second", scaling_mode="act")
    seen = []

    def read(store: "redis.Redis[bytes]", pool: str) -> facts.Reports:
        seen.append(pool)
        # Somebody else's now: this one slept through its end.
        store.set(lease.LEASE, "another")
        return facts.Reports((), (), False)

    monkeypatch.setattr(facts, "read_reports", read)
    world.now_s += INTERVAL_S
    ask(world)
    assert seen == ["default"]
    assert world.store.get(lease.LEASE) == b"another"


SLEEPER = """
import sys
import django
django.setup()
from controlplane.scaling import facts, services
from engine_pool.store import connect
store, now_s = connect(sys.argv[1]), float(sys.argv[2])
read = facts.read_reports
def read_and_wait(store, pool):
    found = read(store, pool)
    print("SEEN", flush=True)
    sys.stdin.readline()
    return found
facts.read_reports = read_and_wait
rows = services.checks_make(store=store, clock=lambda: now_s)
print("ROWS", len(rows), flush=True)
"""


def test_a_worker_that_is_stopped_and_wakes_up_late_decides_nothing(
    world: ScalingWorld, store_url: str
) -> None:
    """SIGSTOP between its look at the reports and its decision, while its lease ends."""
    world.now_s += INTERVAL_S
    tell(world)
    environ = os.environ | {
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
        "FERRY_SCALING_CHECK_S": str(INTERVAL_S),
        "REDIS_URL": store_url,
    }
    sleeper = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, store_url, str(world.now_s)],
        cwd=ROOT, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert sleeper.stdout is not None
        assert sleeper.stdin is not None
        assert sleeper.stdout.readline() == "SEEN\n"
        sleeper.send_signal(signal.SIGSTOP)
        assert ask(world) == [], "it holds the lease"
        # As its end would do, without waiting for it.
        assert world.store.delete(lease.LEASE) == 1
        rows = ask(world)
        assert [row.kind for row in rows] == ["grow"]
        sleeper.send_signal(signal.SIGCONT)
        said, _ = sleeper.communicate("go on\n", timeout=DEADLINE_S)
        assert said == "ROWS 0\n"
    finally:
        sleeper.kill()
        sleeper.wait()

    assert (Pool.objects.get().instances, ScalingState.objects.get().tick) == (3, 1)
    assert connect(store_url).ping()


def test_a_check_says_when_it_was_made(world: ScalingWorld) -> None:
    world.check()
    assert world.state().checked_at == datetime.fromtimestamp(world.now_s, UTC)
