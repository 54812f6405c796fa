"""The pool process with real Ray and simulated engines: start, deaths, adoption, stop."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_pool import view
from engine_pool.pool_keys import PoolKeys
from engine_pool.pool_spec import STATES, PoolSpec, Wanted, publish, store_time_us
from engine_pool.token_log import decode_all, log_key, route_key
from engine_pool.types import InstanceState
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.make import request
from tests.engine_pool.pool_process import PATIENCE_S, STOP_PATIENCE_S, Pool, is_alive, until
from tests.tiny_model import ROOT

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    store = StoreServer()
    store.start()
    # Ray's sockets lie below this folder, and their paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="fr-", dir="/tmp") as folder:
        one = Pool(store, Path(folder))
        try:
            yield one
        finally:
            one.end()
            store.kill()


def test_the_wanted_instances_serve(pool):
    until(lambda: set(pool.serving()) == {"i-01", "i-02"})
    one = pool.serving()["i-01"]
    assert one.actor.startswith("engine:default:i-01:")
    assert one.max_model_len == 2048
    assert one.pid
    until(lambda: pool.redis.xlen(view.SAMPLES) > 0)


def test_an_actor_takes_requests_by_its_name(pool):
    until(lambda: pool.serving())
    actor = next(iter(pool.serving().values())).actor
    blob = msgspec.msgpack.encode([request("a", max_tokens=5), request("b", prompt_tokens=9999)])
    pool.redis.set(route_key("a"), "c")
    script = (
        "import ray, sys; ray.init(namespace='ferry', log_to_driver=False);"
        "print(ray.get(ray.get_actor(sys.argv[1]).submit.remote(bytes.fromhex(sys.argv[2]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, actor, blob.hex()],
        env=pool.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "('b', '9999 prompt tokens" in done.stdout
    until(lambda: pool.redis.xlen(log_key("a")) == 5)
    last = pool.redis.xrevrange(log_key("a"), count=1)[0][1][b"e"]
    assert next(iter(decode_all(last))).finish_reason == "length"


def test_a_killed_engine_is_lost_and_comes_back(pool):
    until(lambda: "i-01" in pool.serving())
    before = pool.serving()["i-01"]
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: pool.statuses()["i-01"].state is not InstanceState.SERVING)
    until(lambda: "i-01" in pool.serving())
    after = pool.serving()["i-01"]
    assert after.incarnation != before.incarnation
    assert after.restarts == before.restarts + 1
    kinds = [view.decode_event(e[b"e"]).kind for _, e in pool.redis.xrange(view.EVENTS)]
    assert "instance_lost" in kinds


def test_engines_outlive_a_killed_pool_process_and_are_adopted(pool):
    until(lambda: len(pool.serving()) == 2)
    before = pool.serving()
    pool.process.kill()
    pool.process.wait()
    assert all(is_alive(s.pid) for s in before.values())
    pool.redis.delete(view.STATUSES)
    pool.start()
    until(lambda: len(pool.serving()) == 2)
    assert {s.pid for s in pool.serving().values()} == {s.pid for s in before.values()}


def test_pools_come_change_and_go_as_it_is_published(pool):
    until(lambda: len(pool.serving()) == 2)
    first, keys = {s.pid for s in pool.serving().values()}, PoolKeys("small")
    default = PoolSpec("default", instances=2)

    def small() -> dict[str, view.InstanceStatus]:
        found = map(view.decode_status, pool.redis.hvals(keys.statuses))
        return {s.instance: s for s in found if s.state is InstanceState.SERVING}

    def tell(*others: PoolSpec) -> None:
        assert publish(pool.redis, Wanted((default, *others)), store_time_us(pool.redis))

    tell(PoolSpec("small", served_model_name="s"), PoolSpec("broken", model="/no/such/folder"))
    until(lambda: set(small()) == {"small-01"})
    until(lambda: pool.redis.hlen(STATES) == 3)
    states = {n.decode(): msgspec.json.decode(s) for n, s in pool.redis.hgetall(STATES).items()}
    assert {n: s["condition"] for n, s in states.items()} == {
        "default": "running",
        "small": "running",
        "broken": "failed",
    }
    assert "/no/such/folder" in states["broken"]["why"]
    tell(PoolSpec("small", instances=2, engine_settings={"max_running": 3}))
    until(lambda: set(small()) == {"small-01", "small-02"})
    kinds = [view.decode_event(e[b"e"]).kind for _, e in pool.redis.xrange(keys.events)]
    assert {"pool_resized", "pool_settings_changed"} <= set(kinds)
    tell(PoolSpec("small", instances=1, engine_settings={"max_running": 3}))
    until(lambda: set(small()) == {"small-01"} and pool.redis.hlen(keys.statuses) == 1)
    pid = small()["small-01"].pid
    tell(PoolSpec("small", is_enabled=False))
    until(lambda: not is_alive(pid) and not pool.redis.exists(keys.statuses))
    assert {s.pid for s in pool.serving().values()} == first, "the others were not touched"


def test_a_stop_leaves_no_engine(pool):
    until(lambda: len(pool.serving()) == 2)
    pids = [s.pid for s in pool.serving().values()]
    pool.process.terminate()
    assert pool.process.wait(STOP_PATIENCE_S) == 0
    until(lambda: not any(is_alive(pid) for pid in pids), STOP_PATIENCE_S)
    assert all(s.state is InstanceState.STOPPED for s in pool.statuses().values())


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        pytest.param({"FERRY_MODEL": "/no/such/folder"}, "/no/such/folder", id="missing folder"),
        pytest.param({"FERRY_INSTANCES": "many"}, "FERRY_INSTANCES", id="not a number"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_and_code_2(environ, words):
    done = subprocess.run(
        [sys.executable, "-m", "engine_pool.main"],
        env=os.environ | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert words in done.stdout
    assert len(done.stdout.splitlines()) == 1
