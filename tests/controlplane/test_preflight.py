"""Whether moves would work here: the verdict, the forecast, how it is measured and kept."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.management import CommandError, call_command

from controlplane.fleet.management.commands import migration_preflight as command
from controlplane.fleet.preflight import PAIRS_MAX, judge, lengths_of, pairs_of
from controlplane.fleet.preflight_run import (
    KEPT,
    RUNNING,
    PreflightRunning,
    preflight_last,
    preflight_run,
)
from controlplane.fleet.preflight_values import Applies, Found, Pair, PairWay
from engine_pool.errors import StoreUnavailable
from engine_pool.move_facts import (
    FACTS,
    MoveFacts,
    SelfTest,
    read_move_facts,
    write_allowed,
    write_self_test,
    write_shape,
)
from engine_pool.types import InstanceName, InstanceState
from migration.ports import KvShape
from migration.stages import StageLimits
from tests.controlplane.fakes import status_of
from tests.controlplane.moving_pool import MovingPool

SHAPE = KvShape(
    engine="vllm 0.32.0 on cpu",
    model="abc",
    layers=30,
    block_size_tokens=16,
    block_bytes=737_280,
    dtype="float32",
    layout="layers, blocks",
    ranks=1,
)
TEST_OK = SelfTest(1.0, True, "64 tokens, identical", "i-01", "i-02", 9.0)
FOUND = Found(
    at_unix_s=1.0,
    serving=("i-01", "i-02"),
    is_switched_on=True,
    allowed=True,
    why="",
    self_test=TEST_OK,
    shapes={"i-01": SHAPE, "i-02": SHAPE},
    ways=(PairWay("i-01", "i-02", 2e9, 0.5), PairWay("i-02", "i-01", 1e9, 0.5)),
    left_out=(),
    step_ms=20.0,
    max_model_len=2048,
    limits=StageLimits(copies_max=8, last_blocks=1),
    copy_share=0.25,
    at_once=4,
)
BROKEN = (PairWay("i-01", "i-02", None, None, "nobody listens"), PairWay("i-02", "i-01", 1e9, 0.5))


def test_a_pool_where_moves_work_says_how_long_a_reader_waits() -> None:
    report = judge(FOUND)
    assert report.ok
    assert report.verdict.startswith("Moves work here: a reader waits about ")
    assert report.token_bytes == 46_080
    assert [f.tokens for f in report.forecasts] == [128, 512, 1024, 2048]
    assert report.slowest == Pair("i-02", "i-01")


def test_the_wait_does_not_grow_with_the_length_but_the_copying_does() -> None:
    short, *_, long = judge(FOUND).forecasts
    assert long.downtime_ms < short.downtime_ms * 1.5
    assert long.copy_ms > short.copy_ms * 5
    assert long.bytes >= 2048 * 46_080


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"is_switched_on": False}, "FERRY_MIGRATION", id="switched off"),
        pytest.param({"allowed": False, "why": "it speculates"}, "it speculates", id="forbidden"),
        pytest.param({"serving": ("i-01",)}, "only i-01 serves", id="one instance"),
        pytest.param({"serving": ()}, "no instance serves", id="none"),
        pytest.param(
            {"shapes": {"i-01": SHAPE, "i-02": replace(SHAPE, block_size_tokens=128)}},
            "differ in block size tokens: i-01 has 16, i-02 has 128",
            id="block size",
        ),
        pytest.param(
            {"shapes": {"i-01": SHAPE, "i-02": replace(SHAPE, engine="vllm 0.33.0 on cpu")}},
            "differ in engine",
            id="version",
        ),
        pytest.param(
            {"self_test": replace(TEST_OK, ok=False, detail="token 12 differs")},
            "self-test failed: token 12 differs",
            id="self-test",
        ),
        pytest.param({"ways": BROKEN[:1]}, "nobody listens", id="no way"),
        pytest.param({"ways": ()}, "could be measured", id="nothing measured"),
    ],
)
def test_what_stops_all_moves_is_the_verdict(changes: dict[str, Any], why: str) -> None:
    report = judge(replace(FOUND, **changes))
    assert not report.ok
    assert report.verdict.startswith("Moves do not work here: ")
    assert why in report.verdict


def test_one_broken_way_is_named_and_the_others_work() -> None:
    report = judge(replace(FOUND, ways=BROKEN))
    assert report.ok
    assert "but not from i-01 to i-02" in report.verdict


def test_a_pool_that_has_told_nothing_yet_gets_no_numbers() -> None:
    report = judge(replace(FOUND, allowed=None, self_test=None, shapes={}, step_ms=None))
    assert report.ok
    assert "not known yet" in report.verdict
    assert (report.forecasts, report.token_bytes, report.is_step_assumed) == ((), None, True)


def test_an_engine_that_cannot_move_has_no_blocks_to_divide_by() -> None:
    empty = replace(SHAPE, block_bytes=0, layers=0)
    report = judge(replace(FOUND, shapes={"i-01": empty, "i-02": empty}))
    assert report.token_bytes is None
    assert report.forecasts == ()


def test_obstacles_say_whether_they_apply() -> None:
    apart = {"i-01": SHAPE, "i-02": replace(SHAPE, ranks=2)}
    applying = [
        o for o in judge(replace(FOUND, shapes=apart)).obstacles if o.applies is Applies.YES
    ]
    assert [o.what for o in applying] == ["Different model, version or block layout"]
    assert "differ in ranks: i-01 has 1, i-02 has 2" in applying[0].why
    fine = judge(FOUND).obstacles
    assert not [o for o in fine if o.applies is Applies.YES]
    per_request = " ".join(o.what for o in fine if o.applies is Applies.PER_REQUEST)
    assert "LoRA" in per_request
    unknown = judge(replace(FOUND, allowed=None)).obstacles
    assert "Speculative decoding" in [o.what for o in unknown if o.applies is Applies.UNKNOWN]


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 60])
def test_pairs_cover_every_instance_before_any_twice(count: int) -> None:
    names = [f"i-{i:02d}" for i in range(count)]
    chosen, left_out = pairs_of(names)
    assert len(chosen) + len(left_out) == count * max(0, count - 1)
    assert len(chosen) <= PAIRS_MAX
    assert len(set(chosen) | set(left_out)) == len(chosen) + len(left_out)
    once = min(count if count > 1 else 0, PAIRS_MAX)
    assert len({p.source for p in chosen[:once]}) == once
    assert len({p.destination for p in chosen[:once]}) == once


def test_only_lengths_that_fit_are_predicted_and_the_longest_always() -> None:
    assert lengths_of([3000, 128], 2048) == [128, 2048]
    assert lengths_of([128, 128], None) == [128]


@pytest.fixture
async def pool(store_url: str) -> AsyncIterator[MovingPool]:
    made = MovingPool(store_url)
    yield made
    await made.store.aclose()


def tell(store: "redis.Redis[bytes]") -> None:
    """Writes what a pool process would."""
    write_allowed(store, True, "")
    write_self_test(store, TEST_OK)
    for name in ("i-01", "i-02"):
        write_shape(store, InstanceName(name), SHAPE)


async def test_facts_come_back_as_they_were_written(
    store: "redis.Redis[bytes]", async_store: "redis.asyncio.Redis[bytes]"
) -> None:
    assert await read_move_facts(async_store) == MoveFacts()
    tell(store)
    facts = await read_move_facts(async_store)
    assert facts == MoveFacts(True, "", TEST_OK, {"i-01": SHAPE, "i-02": SHAPE})
    write_allowed(store, False, "the self-test failed")
    facts = await read_move_facts(async_store)
    assert (facts.allowed, facts.why) == (False, "the self-test failed")


async def test_a_run_measures_each_ordered_pair_and_is_kept(
    pool: MovingPool, store: "redis.Redis[bytes]"
) -> None:
    tell(store)
    pool.serve("i-01", "i-02")
    report = await preflight_run(pool, [256])
    assert pool.gate.measured == [("actor-i-01", "actor-i-02"), ("actor-i-02", "actor-i-01")]
    assert report.ok
    assert [f.tokens for f in report.forecasts] == [256, 2048]
    assert await preflight_last(pool.store) == report
    assert not store.exists(RUNNING)


async def test_instances_that_do_not_serve_are_not_measured(pool: MovingPool) -> None:
    pool.serve("i-01", "i-02")
    pool.view.apply(status_of("i-03", InstanceState.DRAINING))
    report = await preflight_run(pool)
    assert report.serving == ("i-01", "i-02")
    assert len(pool.gate.measured) == 2


async def test_pairs_beyond_twelve_are_left_out_by_name(pool: MovingPool) -> None:
    pool.serve(*(f"i-{i:02d}" for i in range(1, 6)))
    report = await preflight_run(pool)
    assert len(report.ways) == len(pool.gate.measured) == PAIRS_MAX
    assert len(report.left_out) == 8


async def test_a_way_that_cannot_be_measured_says_why(pool: MovingPool) -> None:
    pool.serve("i-01", "i-02")
    pool.gate.unreachable.add("actor-i-02")
    report = await preflight_run(pool)
    assert [w.problem for w in report.ways] == ["actor-i-02 does not listen", ""]


async def test_two_runs_do_not_measure_at_the_same_time(
    pool: MovingPool, store: "redis.Redis[bytes]"
) -> None:
    pool.serve("i-01", "i-02")
    store.set(RUNNING, "somebody else")
    with pytest.raises(PreflightRunning):
        await preflight_run(pool)
    assert not pool.gate.measured
    assert store.get(RUNNING) == b"somebody else"


async def test_results_and_facts_of_another_version_are_as_good_as_none(
    pool: MovingPool, store: "redis.Redis[bytes]"
) -> None:
    store.set(KEPT, b'{"verdict": 1}')
    store.hset(FACTS, "self_test", b"what?")
    pool.serve("i-01", "i-02")
    assert await preflight_last(pool.store) is None
    assert (await preflight_run(pool)).self_test is None


async def test_a_store_that_is_away_is_said_so() -> None:
    pool = MovingPool()
    with pytest.raises(StoreUnavailable):
        await preflight_run(pool)
    with pytest.raises(StoreUnavailable):
        await preflight_last(pool.store)


def _answer(monkeypatch: pytest.MonkeyPatch, found: Found) -> list[list[int]]:
    asked: list[list[int]] = []

    async def measure(config: object, lengths: list[int]) -> object:
        asked.append(lengths)
        return judge(found, lengths)

    monkeypatch.setattr(command, "measure", measure)
    return asked


def test_the_command_says_the_verdict_first_and_exits_with_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = _answer(
        monkeypatch, replace(FOUND, self_test=replace(TEST_OK, at_unix_s=time.time() - 90))
    )
    with pytest.raises(SystemExit) as end:
        call_command("migration_preflight", "--tokens", "100", "700")
    assert end.value.code == 0
    assert asked == [[100, 700]]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Moves work here: a reader waits about")
    text = "\n".join(lines)
    assert "46,080 bytes a token" in text
    assert "i-02       i-01           1.00       0.5 ms" in text
    assert "Self-test: passed 90 s ago" in text
    assert "LoRA" in text


def test_the_command_exits_with_1_when_moves_would_not_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, replace(FOUND, serving=("i-01",), ways=(), shapes={}, self_test=None))
    with pytest.raises(SystemExit) as end:
        call_command("migration_preflight", "--json")
    assert end.value.code == 1
    body = json.loads(capsys.readouterr().out)
    assert body["ok"] is False
    assert body["obstacles"][0]["applies"] == "no"


@pytest.mark.parametrize("tokens", ["0", "-3", "x", "1.5"])
def test_the_command_refuses_lengths_that_are_none(tokens: str) -> None:
    with pytest.raises(CommandError, match="whole number"):
        call_command("migration_preflight", f"--tokens={tokens}")
