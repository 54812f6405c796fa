"""The rebalancer's shell: what it may do, what it counts, what it leaves alone; with fakes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import msgspec
import pytest
import redis

from engine_pool.config import PoolConfig
from engine_pool.errors import InstanceLost, MoveRefused, RequestNotRunning
from engine_pool.live_view import LiveView
from engine_pool.move_facts import FACTS as MOVE_FACTS
from engine_pool.policy.settings import PolicySettings, RebalanceRule
from engine_pool.rebalancer import ASKED_BY, Rebalancer
from engine_pool.rebalancing_facts import (
    FACTS,
    Pause,
    RebalancerReport,
    RebalancerState,
    read_facts,
    write_pause,
)
from engine_pool.types import InstanceName, InstanceState, RequestLoad
from migration.report import MoveReport, MoveState
from tests.engine_pool.make import NOW_UNIX_S, load, running, status, waiting

FULL = tuple(running(kv, name=f"r{n}") for n, kv in enumerate((16, 16, 784, 784)))
"""Of 1600 tokens: nothing is free, and one short request less is not enough."""
ONLY = (running(800, name="r0"), replace(running(800, name="r1"), output_tokens=0))
"""Full, too, and only one of them can move."""


class FakeStore:
    """Hashes in memory; `is_away`: nothing answers."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[bytes, bytes]] = {MOVE_FACTS: {b"allowed": b"1"}}
        self.is_away = False

    def _hash(self, key: str) -> dict[bytes, bytes]:
        if self.is_away:
            raise redis.ConnectionError("away")
        return self.hashes.setdefault(key, {})

    async def hgetall(self, key: str) -> dict[bytes, bytes]:
        return dict(self._hash(key))

    async def hget(self, key: str, name: str) -> bytes | None:
        return self._hash(key).get(name.encode())

    async def hset(self, key: str, name: str, value: bytes) -> None:
        self._hash(key)[name.encode()] = value

    async def hdel(self, key: str, name: str) -> None:
        self._hash(key).pop(name.encode(), None)


@dataclass
class FakeMover:
    asked: list[SimpleNamespace] = field(default_factory=list)
    answer: Callable[[], None] = lambda: None
    """Raises what a refusal raises."""
    waits: bool = False
    """The source does not answer."""

    async def migrate(self, request_id: str, **wish: object) -> MoveReport:
        self.asked.append(SimpleNamespace(request_id=request_id, **wish))
        if self.waits:
            await asyncio.Event().wait()
        self.answer()
        return MOVE


MOVE = MoveReport(
    migration_id="m1",
    request_id="r0",
    seq=1,
    state=MoveState.COPYING,
    source="i-01",
    source_incarnation="a",
    destination="i-02",
    destination_incarnation="a",
    started_unix_s=NOW_UNIX_S,
    at_unix_s=NOW_UNIX_S,
    asked_by=ASKED_BY,
    reason="",
    tokens_at_start=16,
    block_size_tokens=16,
)


class Scene:
    """A pool of two: i-01 is full, i-02 idle."""

    def __init__(self, rule: RebalanceRule | None = None, **config: object) -> None:
        self.store, self.mover = FakeStore(), FakeMover()
        self.now_s = 0.0
        self.events: list[tuple[str, str, str]] = []
        self.live = LiveView(self.store)
        self.live.store_connected = True
        self.config = PoolConfig(
            policy=PolicySettings(rebalance=rule or RebalanceRule()),
            submit_timeout_s=0.05,
            **config,
        )
        self.begin()
        self.show()

    def begin(self) -> None:
        """Starts a rebalancer anew, as a restart does."""
        self.rebalancer = Rebalancer(
            self.config,
            self.live,
            self.mover,
            self.store,
            lambda *event: self.events.append(event),
            clock=lambda: self.now_s,
            wall_clock=lambda: NOW_UNIX_S + self.now_s,
        )

    def show(self, batch: tuple[RequestLoad, ...] = FULL, **fields: object) -> None:
        for name, requests in (("i-01", batch), ("i-02", ())):
            self.live.apply(status(name))
            at_unix_s = NOW_UNIX_S + self.now_s
            self.live.loads.pop(InstanceName(name), None)
            self.live.apply(load(name, batch=requests, at_unix_s=at_unix_s, **fields))

    def turn(self, later_s: float = 0.0) -> list[SimpleNamespace]:
        """Takes a turn and returns the moves that it asked for."""
        self.now_s += later_s
        before = len(self.mover.asked)

        async def once() -> None:
            async with asyncio.timeout(60), asyncio.TaskGroup() as starts:
                await self.rebalancer.turn(starts)

        asyncio.run(once())
        return self.mover.asked[before:]

    @property
    def report(self) -> RebalancerReport:
        found = asyncio.run(read_facts(self.store)).report
        assert found is not None
        return found


def test_a_full_instance_gives_its_requests_to_an_idle_one() -> None:
    scene = Scene()
    first, second = scene.turn()
    assert (first.request_id, first.destination, first.asked_by) == ("r0", "i-02", "rebalancer")
    assert first.reason == "i-01 0.0 < 48 and i-02 idle > 48; normal class, 32 KV tokens to place"
    assert second.request_id == "r1"
    assert scene.report.state is RebalancerState.ON
    scene.turn(1)
    assert scene.report.started_total == scene.report.started_lately == 2
    assert [(p.source, p.destination) for p in scene.report.pairs] == [("i-01", "i-02")]


def test_moves_that_were_asked_for_count_before_the_view_shows_them() -> None:
    scene = Scene()
    assert len(scene.turn()) == 2
    assert scene.turn(0.2) == []


def test_a_move_that_never_shows_up_is_asked_for_again() -> None:
    scene = Scene()
    scene.turn()
    scene.now_s += 6
    scene.show()
    assert len(scene.turn()) == 2


def test_moves_that_go_on_are_seen_after_a_restart() -> None:
    scene = Scene()
    for n in (0, 1):
        scene.live.apply(replace(MOVE, migration_id=f"m{n}", request_id=f"r{n}"))
    scene.begin()
    assert scene.turn() == []


def test_an_operators_move_counts_as_one() -> None:
    scene = Scene()
    scene.live.apply(replace(MOVE, asked_by="operator olga"))
    assert [m.request_id for m in scene.turn()] == ["r1"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda s: setattr(s, "now_s", 6.0), id="all reports are old"),
        pytest.param(
            lambda s: s.live.apply(status("i-02", incarnation="b")),
            id="the destination's is of a dead predecessor",
        ),
        pytest.param(
            lambda s: s.live.apply(status("i-01", InstanceState.LOST)), id="the source is lost"
        ),
        pytest.param(
            lambda s: s.live.apply(status("i-02", InstanceState.CORDONED)),
            id="the destination takes nothing",
        ),
        pytest.param(
            lambda s: setattr(s.live, "store_connected", False), id="the view is not connected"
        ),
        pytest.param(lambda s: setattr(s.store, "is_away", True), id="the store is away"),
        pytest.param(
            lambda s: s.show(tuple(replace(r, output_tokens=0) for r in FULL)),
            id="all prompts are still being computed",
        ),
        pytest.param(
            lambda s: s.show(
                tuple(replace(r, request_id=f"self-test-{r.request_id}") for r in FULL)
            ),
            id="the self-test's own requests",
        ),
    ],
)
def test_nothing_is_moved(change: Callable[[Scene], None]) -> None:
    scene = Scene()
    change(scene)
    assert scene.turn() == []


def test_a_draining_instance_gives_everything_away() -> None:
    scene = Scene()
    scene.show((running(16, name="r0"),), queue=())
    scene.live.apply(status("i-01", InstanceState.DRAINING))
    (move,) = scene.turn()
    assert move.reason.startswith("i-01 drains and i-02 idle is open")


@pytest.mark.parametrize(
    ("facts", "state", "why"),
    [
        pytest.param(
            {b"allowed": b"0", b"why": b"the self-test failed: 3 tokens differ"},
            RebalancerState.FORBIDDEN,
            "the self-test failed: 3 tokens differ",
            id="the self-test failed",
        ),
        pytest.param(
            {}, RebalancerState.FORBIDDEN, "the self-test of moves has not run yet", id="not run"
        ),
    ],
)
def test_the_self_test_decides(facts: dict, state: RebalancerState, why: str) -> None:
    scene = Scene()
    scene.store.hashes[MOVE_FACTS] = facts
    assert scene.turn() == []
    assert (scene.report.state, scene.report.why) == (state, why)


@pytest.mark.parametrize(
    ("scene", "state", "why"),
    [
        pytest.param(
            lambda: Scene(migration=False), RebalancerState.FORBIDDEN, "FERRY_MIGRATION", id="moves"
        ),
        pytest.param(
            lambda: Scene(RebalanceRule(is_on=False)),
            RebalancerState.OFF,
            "FERRY_REBALANCE",
            id="the rebalancer",
        ),
    ],
)
def test_a_setting_switches_it_off(
    scene: Callable[[], Scene], state: RebalancerState, why: str
) -> None:
    off = scene()
    assert off.turn() == []
    assert off.report.state is state
    assert why in off.report.why


def test_a_pause_holds_until_its_time_and_is_told() -> None:
    scene = Scene()
    scene.show(())
    scene.turn()
    pause = Pause("olga", NOW_UNIX_S, NOW_UNIX_S + 60, "an experiment")
    asyncio.run(write_pause(scene.store, pause))
    scene.show()
    assert scene.turn(1) == []
    assert scene.report.state is RebalancerState.PAUSED
    assert "olga" in scene.report.why
    assert "an experiment" in scene.report.why
    scene.now_s = 61
    scene.show()
    assert len(scene.turn()) == 2
    assert [kind for kind, _, _ in scene.events] == ["rebalancing_paused", "rebalancing_resumed"]


def test_a_pause_without_an_end_holds_until_it_is_resumed() -> None:
    scene = Scene()
    asyncio.run(write_pause(scene.store, Pause("olga", NOW_UNIX_S, None)))
    scene.now_s = 100_000
    scene.show()
    assert scene.turn() == []
    asyncio.run(write_pause(scene.store, None))
    assert len(scene.turn()) == 2


def refuse(error: Exception) -> Callable[[], None]:
    def answer() -> None:
        raise error

    return answer


def test_a_refused_request_is_left_alone_longer_each_time() -> None:
    scene = Scene(RebalanceRule(moves_per_instance=1))
    scene.show(ONLY)
    scene.mover.answer = refuse(MoveRefused("no", "refused"))
    at = []
    for _ in range(36):
        scene.show(ONLY)
        if scene.turn(0.25):
            at.append(scene.now_s)
    assert at == [0.25, 1.25, 3.25, 7.25]
    assert scene.report.refused_total == {"refused": 4}
    assert scene.report.started_total == 0


def test_after_a_refusal_the_next_request_is_tried() -> None:
    scene = Scene(RebalanceRule(moves_per_instance=1))
    scene.mover.answer = refuse(MoveRefused("no", "refused"))
    assert [scene.turn(0.1)[0].request_id for _ in range(3)] == ["r0", "r1", "r2"]


def test_an_aborted_move_holds_its_request_back() -> None:
    scene = Scene(RebalanceRule(moves_per_instance=1))
    (first,) = scene.turn()
    ended = replace(
        MOVE,
        migration_id=first.migration_id,
        seq=9,
        state=MoveState.ABORTED,
        abort_code="no_blocks",
    )
    scene.live.apply(ended)
    scene.live.apply(ended)
    (second,) = scene.turn(0.2)
    assert (first.request_id, second.request_id) == ("r0", "r1")
    scene.turn(1)
    assert scene.report.refused_lately == {"no_blocks": 1}


def test_two_that_do_not_reach_each_other_are_not_paired_for_a_while() -> None:
    scene = Scene()
    (first, _) = scene.turn()
    scene.live.apply(
        replace(
            MOVE,
            migration_id=first.migration_id,
            seq=9,
            state=MoveState.ABORTED,
            abort_code="peer_lost",
        )
    )
    assert scene.turn(0.2) == []
    scene.live.apply(status("i-03"))
    scene.live.apply(load("i-03", at_unix_s=NOW_UNIX_S))
    assert {m.destination for m in scene.turn(0.2)} == {"i-03"}


@pytest.mark.parametrize(
    "silence",
    [
        pytest.param(lambda m: setattr(m, "waits", True), id="it never answers"),
        pytest.param(
            lambda m: setattr(m, "answer", refuse(InstanceLost("gone"))), id="its actor is gone"
        ),
    ],
)
def test_a_source_that_does_not_answer_is_left_alone(silence: Callable[[FakeMover], None]) -> None:
    scene = Scene(RebalanceRule(moves_per_instance=1))
    silence(scene.mover)
    assert len(scene.turn()) == 1
    assert scene.turn(0.5) == []
    scene.turn(1)
    assert scene.report.refused_total["peer_lost"] >= 1


def test_a_request_that_has_ended_is_no_failure() -> None:
    scene = Scene(RebalanceRule(moves_per_instance=1))
    scene.mover.answer = refuse(RequestNotRunning("gone"))
    assert [m.request_id for m in scene.turn()] == ["r0"]
    assert [m.request_id for m in scene.turn(0.2)] == ["r0"]


def test_something_unforeseen_does_not_end_the_round() -> None:
    scene = Scene()
    scene.mover.answer = refuse(ZeroDivisionError())
    assert len(scene.turn()) == 2
    scene.turn(1)
    assert scene.report.refused_total == {"failed": 2}


def test_a_cancelled_move_is_not_asked_for_again_at_once() -> None:
    scene = Scene(RebalanceRule(moves_per_instance=1))
    scene.show(ONLY)
    (first,) = scene.turn()
    scene.live.apply(
        replace(
            MOVE,
            migration_id=first.migration_id,
            seq=9,
            state=MoveState.ABORTED,
            abort_code="cancelled",
        )
    )
    scene.now_s = 59
    scene.show(ONLY)
    assert scene.turn() == []
    scene.now_s = 61
    scene.show(ONLY)
    assert len(scene.turn()) == 1


def test_a_blocked_head_goes_elsewhere() -> None:
    scene = Scene(RebalanceRule(moves_per_instance=1))
    scene.live.loads.clear()
    scene.live.apply(load("i-01", batch=FULL, queue=(waiting(64, name="w"),)))
    scene.live.apply(load("i-02"))
    (move,) = scene.turn()
    assert move.request_id == "w"
    assert "The head of the line of i-01 is blocked there" in move.reason


def test_why_nothing_is_moved_is_told() -> None:
    scene = Scene()
    scene.show((running(160),))
    scene.turn()
    assert scene.report.why == "the least free, i-01, is at 1,440: not under 48"
    scene.now_s = 6.5
    scene.turn()
    assert scene.report.why == "no instance has a report younger than 5 s"


def test_what_is_done_is_told_once_a_second_or_when_the_state_changes() -> None:
    scene = Scene()
    scene.turn()
    scene.turn(0.5)
    assert scene.report.rounds_total == 1
    scene.turn(0.5)
    assert scene.report.rounds_total == 3
    asyncio.run(write_pause(scene.store, Pause("olga", NOW_UNIX_S, None)))
    scene.turn(0.1)
    assert scene.report.state is RebalancerState.PAUSED


def test_the_store_that_is_away_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.show(())
    scene.turn()
    scene.store.is_away = True
    for _ in range(5):
        scene.turn(0.2)
    assert [r.message for r in caplog.records if "store is away" in r.message] == [
        "no rebalancing while the store is away: away"
    ]
    scene.store.is_away = False
    scene.show()
    assert len(scene.turn()) == 2


def test_what_another_version_wrote_forbids_moves() -> None:
    scene = Scene()
    scene.store.hashes[FACTS] = {b"pause": msgspec.json.encode({"who": 1})}
    assert scene.turn() == []
    scene.store.hashes[FACTS].pop(b"pause")
    assert scene.report.state is RebalancerState.FORBIDDEN
