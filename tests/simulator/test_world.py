"""Whole runs: the same seed is the same run, nothing is lost whatever the policy, moves keep both
ends' blocks exact."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_pool.simulator.run import run, workload_of
from engine_pool.simulator.scenario import Scenario, scenario_of
from engine_pool.simulator.sim_request import Place
from engine_pool.simulator.world import World
from engine_pool.types import InstanceState
from tests.simulator.bench import request, small

POLICIES: dict[str, dict[str, object]] = {
    "ours": {},
    "least loaded": {"migration": False},
    "round robin": {"migration": False, "dispatch": "round_robin"},
    "no priorities": {"priorities": False},
    "head of line": {"queue": "head"},
    "late binding": {"late_binding": True},
    "live view": {"report_interval_ms": 0.0},
    "no ledger": {"ledger": False, "report_interval_ms": 500.0},
    "many moves": {
        "below_steps": 500.0,
        "above_steps": 500.0,
        "moves_per_instance": 4,
        "rebalance_interval_ms": 50.0,
    },
}


def world_of(scenario: Scenario) -> World:
    world = World(scenario, workload_of(scenario))
    world.begin()
    return world


def run_checking_each_event(world: World) -> None:
    """Adds up all blocks of all engines after every event."""
    while world.step():
        for instance in world.instances:
            instance.engine.check_integrity()
    world.check_integrity()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_same_seed_is_the_same_run(policy: dict[str, object]) -> None:
    scenario = small(policy=policy, workload={"high_share": 0.2})
    first, second = run(scenario).to_dict(), run(scenario).to_dict()
    for report in (first, second):
        del report["wall_s"]
        summary = report["summary"]
        assert isinstance(summary, dict)
        del summary["requests_per_s"]
    assert first == second


def test_another_seed_is_another_run() -> None:
    one, other = run(small(seed=1)).summary, run(small(seed=2)).summary
    assert one["request_mean_ms"] != other["request_mean_ms"]


def test_policies_meet_the_same_requests() -> None:
    met = [
        [(r.arrival_s, r.prompt_tokens, r.total_tokens) for r in world_of(small(policy=p)).requests]
        for p in POLICIES.values()
    ]
    assert all(one == met[0] for one in met)


@settings(max_examples=10, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    seed=st.integers(0, 1000),
    instances=st.integers(1, 5),
    rate_per_s=st.floats(0.5, 40),
    cv=st.sampled_from((0.0, 1.0, 4.0)),
    high_share=st.floats(0, 1),
    max_running=st.integers(1, 40),
    scaling=st.booleans(),
)
def test_nothing_is_lost_whatever_the_policy(
    policy: str,
    seed: int,
    instances: int,
    rate_per_s: float,
    cv: float,
    high_share: float,
    max_running: int,
    scaling: bool,
) -> None:
    scenario = small(
        seed=seed,
        pool={"instances": instances, "max_running": max_running},
        workload={"requests": 30, "rate_per_s": rate_per_s, "cv": cv, "high_share": high_share},
        policy=POLICIES[policy],
        scaling={"enabled": scaling, "check_interval_s": 2.0, "start_delay_s": 3.0},
    )
    run_checking_each_event(world_of(scenario))


def test_blocks_are_exact_at_both_ends_of_every_move_at_every_event() -> None:
    world = world_of(small(policy=POLICIES["many moves"], workload={"high_share": 0.1}))
    run_checking_each_event(world)
    committed = [m for m in world.moves if m.adopted_s is not None]
    assert len(committed) > 20
    assert any(m.abort_code for m in world.moves)
    assert any(m.last_blocks == 0 for m in committed), "queued requests move, too"
    assert any(m.copies > 0 for m in committed)


def test_a_queued_request_moves_without_a_copy() -> None:
    world = world_of(small(workload={"requests": 1}))
    source, destination = world.instances[0], world.instances[1]
    for index in (500, 501):
        source.engine.enqueue(request(index, 2000, 50), 0.0)
    waiting = source.engine.candidates()[-1]
    assert waiting.kv_tokens == 0
    move = world.start_move(waiting, source, destination, "a test")
    while not move.is_over:
        world.step()
    assert move.abort_code == ""
    assert (move.copies, move.last_blocks) == (0, 0)
    assert waiting.request.instance == destination.engine.name
    assert move.ended_s is not None
    assert move.ended_s < 0.01, "messages only"
    for instance in (source, destination):
        instance.engine.check_integrity()
        assert not instance.engine.held_blocks


def test_a_move_to_a_full_instance_is_refused() -> None:
    world = world_of(small(workload={"requests": 1}))
    source, destination = world.instances[0], world.instances[1]
    source.engine.enqueue(request(500, 2000, 500), 0.0)
    destination.engine.enqueue(request(501, 3000, 500), 0.0)
    while not source.engine.batch.members:
        world.step()
    running = source.engine.candidates()[0]
    move = world.start_move(running, source, destination, "a test")
    while not move.is_over:
        world.step()
    assert move.abort_code == "no_room"
    assert running.request.instance == source.engine.name
    assert running.request.place is Place.DECODING


def test_a_drain_by_moves_empties_an_instance_long_before_its_requests_end() -> None:
    world = world_of(small(workload={"requests": 40, "rate_per_s": 4.0}))
    draining = world.instances[0]
    while not (world.now_s > 8 and len(draining.engine.batch.members) >= 2):
        assert world.step()
    there = list(draining.engine.batch.members.values())
    began_s = world.now_s
    world.set_state(draining.engine.name, InstanceState.DRAINING)
    while draining.state is not InstanceState.STOPPED:
        assert world.step()
    assert draining.stopped_s is not None
    assert draining.stopped_s - began_s < 5
    assert any(r.place is not Place.DONE for r in there)
    run_checking_each_event(world)
    assert draining.engine.is_empty


def test_without_moves_a_drain_waits_for_the_last_request() -> None:
    world = world_of(
        small(workload={"requests": 40, "rate_per_s": 4.0}, policy={"migration": False})
    )
    draining = world.instances[0]
    while not (world.now_s > 8 and len(draining.engine.batch.members) >= 2):
        assert world.step()
    there = list(draining.engine.batch.members.values())
    world.set_state(draining.engine.name, InstanceState.DRAINING)
    while draining.state is not InstanceState.STOPPED:
        assert world.step()
    assert draining.stopped_s == max(r.finish_s or 0 for r in there)


def test_a_draining_instance_receives_nothing() -> None:
    world = world_of(small())
    draining = world.instances[2]
    world.set_state(draining.engine.name, InstanceState.DRAINING)
    while world.step():
        assert draining.engine.is_empty


def test_an_instance_that_starts_serves_after_its_delay() -> None:
    scenario = small(scaling={"start_delay_s": 3.0})
    world = world_of(scenario)
    world.start_instance()
    new = world.instances[-1]
    while new.state is InstanceState.STARTING:
        assert new.engine.is_empty
        world.step()
    assert world.now_s == 3.0
    assert new.seconds_until(10.0) == 10.0, "its start is paid for"


def test_scaling_follows_the_load() -> None:
    found = run(
        small(
            pool={"instances": 1},
            workload={"requests": 400, "rate_per_s": 3.0},
            scaling={"enabled": True, "max_instances": 6, "start_delay_s": 5.0},
        )
    )
    mean_instances = found.summary["instances_mean"]
    assert mean_instances is not None
    assert 1 < mean_instances <= 6
    counts = [n for n in found.series["instances"] if n is not None]
    assert min(counts) == 1
    assert max(counts) > 1


def test_moves_let_those_in_that_scattered_memory_keeps_out() -> None:
    scenario = scenario_of(
        {
            "pool": {"instances": 8},
            "workload": {"requests": 1500, "rate_per_s": 4.5},
            "costs": {"time_scale": 1.2},
        }
    )
    moved = run(scenario).summary
    stayed = run(replace(scenario, policy=replace(scenario.policy, migration=False))).summary
    for number in ("fragmentation", "prefill_mean_ms"):
        with_moves, without = moved[number], stayed[number]
        assert with_moves is not None
        assert without is not None
        assert with_moves < without / 1.5


def test_high_requests_are_faster_than_the_same_ones_without_classes() -> None:
    scenario = small(workload={"requests": 400, "cv": 4.0, "high_share": 0.1})
    plain = replace(scenario, policy=replace(scenario.policy, priorities=False))
    ours = run(scenario).by_class["high"]["prefill_mean_ms"]
    none = run(plain).by_class["high"]["prefill_mean_ms"]
    assert ours is not None
    assert none is not None
    assert ours < none


def test_rounds_of_rebalancing_rest_while_the_pool_is_empty() -> None:
    sparse = {"requests": 4, "rate_per_s": 0.001, "output_cap_tokens": 20}
    world = world_of(small(workload=sparse, policy={"rebalance_interval_ms": 10.0}))
    events = 0
    while world.step():
        events += 1
    assert world.last_arrival_s > 1000
    assert events < 6000, "2,000 looks for the charts, and those of four requests"


def test_a_request_moves_again_only_when_its_last_destination_has_let_go() -> None:
    """With slow messages the source knows long before the destination that a move is over."""
    world = world_of(
        small(
            policy={"below_steps": 500.0, "above_steps": 500.0, "rebalance_interval_ms": 10.0},
            costs={"message_ms": 80.0},
        )
    )
    given_up = set()
    while world.step():
        for move in world.moves:
            if move.abort_code and not move.is_over:
                given_up.add(id(move))
                assert move.request.is_moving
    world.check_integrity()
    assert given_up, "some moves were given up while a message was on its way"
