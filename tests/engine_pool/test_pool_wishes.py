"""What is wanted of instances, carried out by a real pool process with Ray and simulated engines:
drains, stops, restarts, SIGTERM, rolling updates, orphans. No token is lost, repeated or changed.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import ray

from engine_pool import view
from engine_pool.config import RAY_NAMESPACE, PoolConfig
from engine_pool.engine_process import EngineProcess
from engine_pool.engine_spec import EngineSpec, SampleText
from engine_pool.policy.rebalancing import NO_PLACE
from engine_pool.policy.wishes import InstanceWish, Leftover, WantedState
from engine_pool.pool_spec import PoolSpec, Wanted, publish, store_time_us
from engine_pool.ports import Pong
from engine_pool.token_log import TokenFrame, decode_all, log_key, route_key
from engine_pool.types import EngineKind, InstanceName, InstanceState, InstanceStatus
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.make import request
from tests.engine_pool.pool_process import PATIENCE_S, Pool, is_alive, until

pytestmark = pytest.mark.ray

S = InstanceState
LONG = 700
"""Tokens of a request that still runs when what is tested has begun: about 20 s."""


class Wishes(Pool):
    """A pool process of which things are wanted, and requests at its engines."""

    spec = PoolSpec("default", instances=3)
    sent: tuple[str, ...] = ()
    """Requests whose tokens have not been looked at yet."""

    def want(self, nodes: dict[str, InstanceWish] | None = None, **wishes: InstanceWish) -> None:
        """Publishes wishes by instance (i_01) and node; without any all serve."""
        named = {name.replace("_", "-"): wish for name, wish in wishes.items()}
        spec = replace(self.spec, wishes=named)
        assert publish(self.redis, Wanted((spec,), {}, nodes or {}), store_time_us(self.redis))

    def is_up(self) -> bool:
        return len(self.serving()) == 3

    def status(self, name: str = "i-01") -> InstanceStatus:
        return self.statuses()[name]

    def until_state(self, state: InstanceState, name: str = "i-01") -> InstanceStatus:
        until(lambda: name in self.statuses() and self.status(name).state is state)
        return self.status(name)

    def until_all_serve(self) -> dict[str, InstanceStatus]:
        until(lambda: len(self.serving()) == 3 and len(self.statuses()) == 3)
        return self.serving()

    def send(self, count: int, name: str = "i-01", tokens: int = LONG) -> list[str]:
        """Sends requests straight to an instance; returns their ids once they run there."""
        ids = [f"{name}-{time.monotonic_ns()}-{n}" for n in range(count)]
        for one in ids:
            self.redis.set(route_key(one), "c")
        assert self.submit(ids, name, tokens) == []
        until(lambda: all(self.frames(i) for i in ids))
        self.sent += tuple(ids)
        return ids

    def finish(self) -> None:
        """Waits for everything that was sent: each token is in its log once."""
        until(lambda: all(map(self.is_over, self.sent)))
        sent, self.sent = self.sent, ()
        for one in sent:
            assert is_whole(self.frames(one)), (one, self.frames(one)[-3:])

    def submit(self, ids: list[str], name: str, tokens: int) -> list[tuple[str, str]]:
        blob = msgspec.msgpack.encode(
            [request(i, max_tokens=tokens, min_tokens=tokens) for i in ids]
        )
        actor = ray.get_actor(self.status(name).actor, namespace=RAY_NAMESPACE)
        return ray.get(actor.submit.remote(blob), timeout=PATIENCE_S)

    def pong(self, name: str = "i-01") -> Pong:
        actor = ray.get_actor(self.status(name).actor, namespace=RAY_NAMESPACE)
        return Pong(**ray.get(actor.ping.remote(), timeout=PATIENCE_S))

    def frames(self, request_id: str) -> list[TokenFrame]:
        entries = self.redis.xrange(log_key(request_id))
        # Marks of producers that were shut out stand in a field of their own.
        blobs = [blob for _, f in entries for name, blob in f.items() if name != b"x"]
        found = (frame for blob in blobs for frame in decode_all(blob))
        return [frame for frame in found if isinstance(frame, TokenFrame)]

    def is_over(self, request_id: str) -> bool:
        frames = self.frames(request_id)
        return bool(frames) and (frames[-1].finish_reason is not None or frames[-1].error)

    def kinds(self) -> list[str]:
        return [view.decode_event(e[b"e"]).kind for _, e in self.redis.xrange(view.EVENTS)]


def is_whole(frames: list[TokenFrame], tokens: int = LONG) -> bool:
    """Says whether a log has each token once, up to the end."""
    at = 0
    for frame in frames:
        if frame.start != at or frame.error:
            return False
        at += len(frame.token_ids)
    return at == tokens and frames[-1].finish_reason == "length"


@pytest.fixture(scope="module")
def server() -> Iterator[Wishes]:
    store = StoreServer()
    store.start()
    with tempfile.TemporaryDirectory(prefix="fw-", dir="/tmp") as folder:
        one = Wishes(
            store,
            Path(folder),
            FERRY_INSTANCES="3",
            FERRY_ORPHAN_GRACE_S="3600",
            FERRY_TERM_GRACE_S="3600",
        )
        try:
            until(one.is_up)
            ray.init(one.environ["RAY_ADDRESS"], namespace=RAY_NAMESPACE, log_to_driver=False)
            # No moves before the self-test of moves.
            until(lambda: "migration_tested" in one.kinds())
            for name in one.serving():
                # The first call to an actor takes seconds on a busy machine.
                assert one.pong(name).is_ready
            yield one
        finally:
            ray.shutdown()
            one.end()
            store.kill()


@pytest.fixture
def pool(server: Wishes) -> Wishes:
    """Three instances that serve, whatever the test before did."""
    server.want()
    until(server.is_up)
    server.until_all_serve()
    return server


CORDON = InstanceWish(WantedState.CORDONED, "kim", "a look", 1.0)
DRAIN = InstanceWish(WantedState.DRAINED, "kim", "a new fan", 1.0)
STOP = InstanceWish(WantedState.STOPPED, "kim", "a new fan", 1.0)


def test_a_cordoned_instance_keeps_what_it_has_and_takes_nothing(pool: Wishes) -> None:
    ids = pool.send(2)
    pool.want(i_01=CORDON)
    assert pool.until_state(S.CORDONED).cause == "to be cordoned by kim: a look"
    until(lambda: pool.pong().door == "cordoned")
    ((_, why),) = pool.submit(["x"], "i-01", 5)
    assert why == "cordoned: it takes nothing new"
    assert pool.pong().running == 2
    pool.finish()
    assert {f.instance for i in ids for f in pool.frames(i)} == {"i-01"}
    pool.want()
    pool.until_state(S.SERVING)
    assert pool.submit(["x"], "i-01", 5) == []


def test_a_drain_under_load_moves_everything_and_is_proven(pool: Wishes) -> None:
    before = pool.until_all_serve()
    pool.send(8)
    pool.want(i_01=DRAIN)
    status = pool.until_state(S.DRAINED)
    drain = status.drain
    assert drain is not None
    assert (drain.left, drain.moving) == (0, 0)
    assert drain.moved + drain.ended == drain.requests_at_start >= 8
    assert drain.moved > 0
    assert drain.verified_unix_s is not None
    assert (status.wanted, status.wanted_by, status.wanted_reason) == (
        "drained",
        "kim",
        "a new fan",
    )
    pong = pool.pong()
    assert (pong.used_tokens, pong.running, pong.waiting, pong.moves) == (0, 0, 0, 0)
    assert {"instance_draining", "instance_drained"} <= set(pool.kinds())
    pool.want()
    assert pool.until_state(S.SERVING).pid == before["i-01"].pid, "without a restart"
    assert pool.status().drain is None


def test_a_drain_goes_on_after_the_pool_process_was_killed(pool: Wishes) -> None:
    before = pool.until_all_serve()
    pool.send(8)
    pool.want(i_01=DRAIN)
    pool.until_state(S.DRAINING)
    pool.process.kill()
    pool.process.wait()
    pool.start()
    status = pool.until_state(S.DRAINED)
    assert status.pid == before["i-01"].pid
    assert status.drain is not None
    assert status.drain.moved + status.drain.ended == status.drain.requests_at_start >= 8
    # Adopted as it is, and let go by another one still.
    pool.process.kill()
    pool.process.wait()
    pool.start()
    until(lambda: "was draining before" in pool.status().cause or pool.status().drain is not None)
    pool.until_state(S.DRAINED)
    pool.want()
    pool.until_state(S.SERVING)


def test_a_stopped_instance_stays_down_until_it_is_released(pool: Wishes) -> None:
    pool.send(4)
    pid = pool.status().pid
    assert pid is not None
    pool.want(i_01=STOP)
    status = pool.until_state(S.STOPPED)
    assert status.drain is not None
    assert status.drain.verified_unix_s is not None, "drained first"
    assert not is_alive(pid)
    pool.process.kill()
    pool.process.wait()
    pool.start()
    until(lambda: "not started" in pool.status().cause)
    pool.want()
    assert pool.until_state(S.SERVING).pid != pid


def test_a_restart_empties_the_engine_first(pool: Wishes) -> None:
    pool.send(4)
    before = pool.status()
    pool.want(i_01=InstanceWish(by="kim", reason="slow", renew_before_unix_s=time.time()))
    until(lambda: pool.status().incarnation != before.incarnation)
    pool.until_state(S.SERVING)
    incarnation = pool.status().incarnation
    pool.want()
    until(lambda: pool.status().wanted_by == "")
    assert pool.status().incarnation == incarnation, "once"


def test_sigterm_to_an_engine_drains_it_first(pool: Wishes) -> None:
    pool.send(4)
    before = pool.status()
    assert before.pid is not None
    os.kill(before.pid, signal.SIGTERM)
    pool.until_state(S.DRAINING)
    assert pool.status().wanted_by == "SIGTERM"
    until(lambda: pool.status().incarnation != before.incarnation)
    pool.until_state(S.SERVING)
    assert not is_alive(before.pid)
    assert pool.status().failures == 0


def test_new_engine_settings_reach_all_one_by_one(pool: Wishes) -> None:
    before = pool.until_all_serve()
    for name in before:
        pool.send(3, name)
    pool.spec = replace(pool.spec, engine_settings={"max_running": 48})
    pool.want()
    most = 0

    def is_done() -> bool:
        nonlocal most
        now = pool.statuses()
        leaving = (S.DRAINING, S.DRAINED, S.STOPPING)
        most = max(most, sum(s.state in leaving for s in now.values()))
        return all(
            s.incarnation != before[name].incarnation and s.state is S.SERVING
            for name, s in now.items()
        )

    until(is_done)
    assert most == 1, "one after the other"
    assert not any(s.is_outdated for s in pool.statuses().values())
    until(lambda: "rollout_done" in pool.kinds())


def test_engines_of_nobody_are_ended(pool: Wishes) -> None:
    pool.until_all_serve()
    config = PoolConfig(pool="ghost", engine=EngineKind.SIMULATED, redis_url=pool.store.url)
    spec = EngineSpec(
        InstanceName("ghost-01"), "x", config, "m", 1, 100, SampleText(((5,),), ((5,),), 2)
    )
    foreign = replace(spec, config=replace(config, redis_url=f"{pool.store.url}5"))
    for name, one in (("ghost", spec), ("other", foreign)):
        actor = ray.remote(EngineProcess).options(
            name=f"engine:{name}:{name}-01:x", lifetime="detached", num_cpus=0
        )
        handle = actor.remote(one)
        assert ray.get(handle.ping.remote(), timeout=PATIENCE_S)["installation"]
    until(lambda: "orphan_ended" in pool.kinds())
    names = ray.util.list_named_actors()
    assert "engine:ghost:ghost-01:x" not in names
    assert "engine:other:other-01:x" in names, "another installation's"
    ray.kill(ray.get_actor("engine:other:other-01:x"))
    assert len(pool.serving()) == 3


def test_a_nodes_wish_concerns_all_its_instances_and_names_what_keeps_them(pool: Wishes) -> None:
    pool.finish()
    ids = pool.send(3, tokens=1900)
    pool.sent = ()
    node = pool.status().node
    pool.want(nodes={node: DRAIN})
    pool.until_state(S.DRAINED, "i-02")
    # Until the others' doors were seen closed, moves to them may have been refused.
    until(lambda: (d := pool.status().drain) is not None and d.obstacle == NO_PLACE)
    ended = replace(DRAIN, deadline_unix_s=time.time(), leftover=Leftover.END)
    pool.want(nodes={node: ended})
    pool.until_state(S.DRAINED)
    until(lambda: all(map(pool.is_over, ids)))
    errors = [e.code for i in ids if (e := pool.frames(i)[-1].error)]
    assert errors == ["instance_lost"] * 3
    assert "drain_deadline" in pool.kinds()


def test_an_only_instance_is_updated_with_an_extra_one(pool: Wishes) -> None:
    pool.finish()
    pool.spec = replace(pool.spec, instances=1)
    pool.want()
    until(lambda: set(pool.statuses()) == {"i-01"})
    pool.until_state(S.SERVING)
    pool.send(4)
    before = pool.status()
    pool.spec = replace(pool.spec, engine_settings={"max_running": 32})
    pool.want()
    until(lambda: "i-02" in pool.serving())
    until(lambda: pool.status().incarnation != before.incarnation)
    until(lambda: set(pool.statuses()) == {"i-01"})
    pool.until_state(S.SERVING)
    pool.finish()
    pool.spec = replace(pool.spec, instances=3)
