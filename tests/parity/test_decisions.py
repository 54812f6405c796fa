"""The live loops and the simulator take the same decisions on one trace.

Dispatch, the gateway's queue and the rebalancer run as they do in web processes and in the pool
process, on the reports of simulated engines (world.py). Whatever they see and decide is compared
with what the simulator's own loops see and decide in the same moment: requests, places, their order
and the reasons.
"""

from collections.abc import Mapping
from contextlib import closing

import pytest

from engine_pool.ledger import Ledger
from engine_pool.live_view import LiveView
from engine_pool.simulator.run import workload_of
from engine_pool.simulator.scenario import Scenario
from engine_pool.types import InstanceName, InstanceState
from tests.parity.world import ParityWorld
from tests.simulator.bench import small

REQUESTS = 300
LAST = InstanceName("i-0003")
DRAINS_AT_S = 15.0


def scenario(seed: int, costs: Mapping[str, object] | None = None, **policy: object) -> Scenario:
    """Four instances, and more requests of two classes than they hold."""
    return small(
        seed=seed,
        policy=policy,
        costs=costs,
        workload={"requests": REQUESTS, "rate_per_s": 8.0, "high_share": 0.2},
    )


DEFAULTS = scenario(10)
MANY_MOVES = scenario(
    2, packs_classes=False, below_steps=100.0, above_steps=100.0, moves_per_instance=4
)
LONG_MOVES = scenario(3, {"copy_base_ms": 300.0}, packs_classes=False, moves_per_instance=3)
"""They last for several rounds."""
LATE_BINDING = scenario(8, late_binding=True, late_pass_s=1.0, packs_classes=False)


def world_of(one: Scenario, monkeypatch: pytest.MonkeyPatch) -> ParityWorld:
    return ParityWorld(one, workload_of(one), monkeypatch)


def run(world: ParityWorld) -> None:
    with closing(world.live):
        world.run()
    world.check_integrity()


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(DEFAULTS, id="the defaults"),
        pytest.param(MANY_MOVES, id="many moves"),
        pytest.param(LONG_MOVES, id="long moves"),
        pytest.param(scenario(10, queue="head", elastic_headroom=False), id="the paper's rules"),
        pytest.param(scenario(8, priorities=False, defragments=False), id="one class"),
        pytest.param(LATE_BINDING, id="late binding"),
    ],
)
def test_live_and_simulated_decide_the_same(one: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(one, monkeypatch)
    run(world)
    counts = world.counts
    assert counts.choices == REQUESTS
    assert counts.moves == len(world.moves) >= 24
    assert counts.in_transit >= 24
    assert sum(r.preemptions for r in world.requests) >= 24
    assert (counts.longest_queue > 0) == one.policy.late_binding


def test_they_decide_the_same_while_an_instance_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(scenario(5), monkeypatch)
    last: InstanceState | None = None
    with closing(world.live):
        world.begin()
        while world.step():
            if last is None and world.now_s >= DRAINS_AT_S:
                world.set_state(LAST, InstanceState.DRAINING)
                last = InstanceState.DRAINING
    world.check_integrity()
    assert world.instances[-1].state is InstanceState.STOPPED
    assert any(m.reason.startswith(f"{LAST} drains") for m in world.moves)


@pytest.mark.parametrize(
    ("one", "deaf", "to"),
    [
        pytest.param(DEFAULTS, Ledger, "enter", id="a ledger that nothing is entered into"),
        pytest.param(DEFAULTS, Ledger, "drop_shown", id="a ledger that nothing leaves"),
        pytest.param(LONG_MOVES, LiveView, "_apply_move", id="a view that hears of no moves"),
        pytest.param(LATE_BINDING, Ledger, "enter", id="late binding without a ledger"),
    ],
)
def test_a_difference_would_be_found(
    one: Scenario, deaf: type[object], to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaf, to, lambda self, news: None)
    with pytest.raises(AssertionError, match="saw something else"):
        run(world_of(one, monkeypatch))
