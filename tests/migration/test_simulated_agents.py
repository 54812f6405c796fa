"""Simulated engines under real agents: what moves, what it says, what is left."""

from collections.abc import Iterator

import pytest

from engine_pool.ports import EngineRequest
from engine_pool.simulator.costs import CopyCosts, StepCosts
from engine_pool.simulator.live_engine import SimulatedEngine, SimulatedLimits
from engine_pool.simulator.plane import SimulatedPlane
from migration.agent import MigrationAgent
from migration.engine_side import EngineSide
from migration.office import AgentSettings
from migration.report import MoveState
from migration.stages import StageLimits
from tests.engine_pool.make import request
from tests.engine_pool.test_simulated_moves import TEXT, unmoved
from tests.migration.two_sides import PATIENCE_S, PlaneHub, SharedLog, Side, Two, until

QUICK = 0.1
"""Part of the modelled times."""


class SimulatedSide(Side):
    def __init__(self, name: str, log: SharedLog, hub: PlaneHub) -> None:
        super().__init__(name, log, hub)
        limits = SimulatedLimits(max_running=4)
        self.engine = SimulatedEngine(TEXT, limits, StepCosts(time_scale=QUICK))
        self.agent = MigrationAgent(
            AgentSettings(name, f"{name}-inc", True, 4, StageLimits(8, 1), 5.0, 5.0, 5.0),
            EngineSide(self.loop, lambda engine: engine.moves),
            SimulatedPlane(CopyCosts(time_scale=QUICK)),
            self.engine.moves.shape,
            self,
            self,
            self.connect,
        )

    def stop(self) -> None:
        self.agent.stop(PATIENCE_S)
        self.loop.stop(PATIENCE_S)
        assert not self.died


class SimulatedTwo(Two):
    def __init__(self) -> None:
        self.log, hub = SharedLog(), PlaneHub()
        self.a, self.b = SimulatedSide("i-01", self.log, hub), SimulatedSide("i-02", self.log, hub)
        self.a.peers["i-02"], self.b.peers["i-01"] = self.b, self.a

    def check_end(self, wish: EngineRequest) -> None:
        """Waits for an answer's end; it is the unmoved one, and both engines are empty."""
        until(lambda: self.log.is_over(wish.request_id))
        assert self.log.tokens(wish.request_id) == unmoved(wish)

    def check_empty(self) -> None:
        for side in (self.a, self.b):
            until(lambda s=side: s.engine.load().used_tokens == 0)
            side.engine.check_integrity()


@pytest.fixture
def two() -> Iterator[SimulatedTwo]:
    pair = SimulatedTwo()
    pair.start()
    yield pair
    pair.stop()


def long_answer(name: str, prompt_tokens: int, tokens: int = 150) -> EngineRequest:
    return request(name, prompt_tokens=prompt_tokens, max_tokens=tokens, min_tokens=tokens)


@pytest.mark.parametrize("prompt_tokens", [5, 300, 1500])
def test_a_simulated_answer_moves_and_stays_the_same(two, prompt_tokens):
    wish = long_answer("r", prompt_tokens)
    two.a.submit(wish)
    until(lambda: len(two.log.tokens("r")) > 5)
    assert two.migrate("r") is None
    report = two.end_of()
    assert report.state is MoveState.COMMITTED, report.abort_reason
    assert report.downtime_ms is not None
    assert sum(stage.bytes for stage in report.stages) >= prompt_tokens * 524_288
    two.check_end(wish)
    assert {f.instance for f in two.log.frames["r"]} == {"i-01", "i-02"}
    two.check_empty()


def test_a_simulated_answer_moves_there_and_back(two):
    wish = long_answer("r", 100, 300)
    two.a.submit(wish)
    until(lambda: len(two.log.tokens("r")) > 5)
    for n in range(4):
        assert two.migrate("r", f"m{n}", back=n % 2 == 1) is None
        assert two.end_of(f"m{n}", two.b if n % 2 else two.a).state is MoveState.COMMITTED
    two.check_end(wish)
    assert {f.epoch for f in two.log.frames["r"]} >= {1, 5}
    two.check_empty()


def test_a_queued_simulated_request_moves_without_a_copy(two):
    busy = [long_answer(f"busy{n}", 50, 250) for n in range(4)]
    queued = long_answer("queued", 50)
    two.a.submit(*busy)
    until(lambda: all(two.log.tokens(wish.request_id) for wish in busy))
    two.a.submit(queued)
    assert two.migrate("queued") is None
    report = two.end_of()
    assert (report.state, report.is_queued) == (MoveState.COMMITTED, True)
    assert report.stages == ()
    for wish in (*busy, queued):
        two.check_end(wish)
    assert {f.instance for f in two.log.frames["queued"]} == {"i-02"}
    two.check_empty()


def test_a_full_simulated_engine_refuses_and_the_answer_goes_on(two):
    there = [long_answer(f"there{n}", 50, 250) for n in range(4)]
    wish = long_answer("r", 100)
    two.b.submit(*there)
    two.a.submit(wish)
    until(lambda: two.log.tokens("r") and all(two.log.tokens(w.request_id) for w in there))
    assert two.migrate("r") is None
    report = two.end_of()
    assert (report.state, report.abort_code) == (MoveState.ABORTED, "no_blocks")
    for one in (*there, wish):
        two.check_end(one)
    two.check_empty()
