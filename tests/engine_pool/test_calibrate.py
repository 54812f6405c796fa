"""An engine whose costs are known is measured right; a real one gives a file to simulate with."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from engine_pool.calibrate import main
from engine_pool.calibration import Bench, CalibrationError
from engine_pool.calibration_sizes import QUICK, Effort, Room, batch_sizes, prompt_sizes
from engine_pool.ports import EngineRequest, StepOutput
from engine_pool.simulator.cost_file import read_costs
from engine_pool.simulator.costs import StepCosts
from engine_pool.simulator.fitting import fit_steps
from engine_pool.types import RequestId
from tests.engine_pool.make import request
from tests.tiny_model import tiny_model

ROOM = Room(max_model_len=4096, capacity_tokens=50_000, block_size_tokens=16, max_running=32)
COSTS = StepCosts()


class KnownEngine:
    """Takes as long as COSTS say, by a clock of its own. Cuts prompts at `step_tokens`."""

    def __init__(self, step_tokens: int = 8192) -> None:
        self.now_s = 0.0
        self.longest_batch = 0
        self.slowdown = 0.0
        self.is_mixing = False
        """Prompts and decodes go together, each at its own cost."""
        self._step_tokens = step_tokens
        self._new: list[tuple[EngineRequest, int]] = []
        self._running: dict[RequestId, list[int]] = {}

    def clock(self) -> float:
        return self.now_s

    def probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> EngineRequest:
        assert prompt_tokens + max_tokens <= ROOM.max_model_len
        return request(request_id, prompt_tokens=prompt_tokens, max_tokens=max_tokens)

    def add(self, one: EngineRequest) -> None:
        self._new.append((one, one.prompt_tokens))

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        for request_id in request_ids:
            del self._running[request_id]

    def has_work(self) -> bool:
        return bool(self._new or self._running)

    def load(self):
        raise NotImplementedError

    def step(self) -> list[StepOutput]:
        self.longest_batch = max(self.longest_batch, len(self._running))
        if not self.is_mixing:
            return self._prefill() if self._new else self._decode()
        running = list(self._running)
        return [o for o in self._decode() if o.request_id in running] + self._prefill()

    def _prefill(self) -> list[StepOutput]:
        left, done, parts = self._step_tokens, [], []
        while self._new and left:
            one, missing = self._new.pop(0)
            part = min(left, missing)
            left -= part
            parts.append(part)
            if part < missing:
                self._new.insert(0, (one, missing - part))
            else:
                done.append(one)
        self.now_s += COSTS.prefill_ms(parts) / 1000
        for one in done:
            if one.max_tokens > 1:
                self._running[one.request_id] = [one.prompt_tokens + 1]
        return [StepOutput(one.request_id, (7,)) for one in done]

    def _decode(self) -> list[StepOutput]:
        tokens = sum(n for (n,) in self._running.values())
        took_ms = COSTS.decode_ms(len(self._running), tokens)
        self.now_s += took_ms * (1 + self.slowdown) / 1000
        for counted in self._running.values():
            counted[0] += 1
        return [StepOutput(request_id, (7,)) for request_id in self._running]


def bench(engine: KnownEngine, effort: Effort) -> Bench:
    return Bench(engine, engine.probe, ROOM, effort, tell=lambda line: None, clock=engine.clock)


@pytest.mark.parametrize(
    ("effort", "share"),
    [pytest.param(Effort(), 0.01, id="whole"), pytest.param(QUICK, 0.03, id="quick")],
)
def test_an_engine_of_known_costs_is_measured_right(effort, share):
    engine = KnownEngine()
    one = bench(engine, effort)
    found, fits = fit_steps(one.prefills(), one.decodes())
    assert asdict(found) == pytest.approx(asdict(COSTS), rel=share)
    assert fits["prefill"].max_error < 0.01
    assert fits["decode"].max_error < 0.01
    assert engine.longest_batch <= ROOM.max_running
    assert not engine.has_work(), "nothing is left behind"


def test_a_prompt_that_is_cut_counts_its_steps():
    points = bench(KnownEngine(step_tokens=512), Effort()).prefills()
    assert {p.steps for p in points if p.prompt_tokens == (2048,)} == {4}
    assert {p.steps for p in points if p.prompt_tokens == (16,)} == {1}


def test_a_slow_engine_is_not_asked_for_its_longest_prompts():
    longest_s = COSTS.prefill_ms([512]) / 1000 - 0.001
    points = bench(KnownEngine(), Effort(longest_s=longest_s)).prefills()
    assert max(sum(p.prompt_tokens) for p in points) == 512


def test_steps_beside_other_work_are_compared_with_quiet_ones():
    engine = KnownEngine()

    class Beside:
        def begin(self) -> None:
            engine.slowdown = 0.25

        def end(self) -> None:
            engine.slowdown = 0.0

    assert bench(engine, Effort()).slowdown(4, 256, Beside()) == pytest.approx(0.25, rel=0.02)


def test_steps_with_a_prefill_are_compared_with_both_alone():
    engine = KnownEngine()
    engine.is_mixing = True
    assert bench(engine, Effort()).mixed_ratio(COSTS) == pytest.approx(1.0, rel=0.01)
    assert not engine.has_work()
    assert bench(KnownEngine(), Effort()).mixed_ratio(COSTS) is None, "it never mixes"


def test_an_engine_that_gets_stuck_is_an_error():
    engine = KnownEngine()
    engine.has_work = lambda: False
    with pytest.raises(CalibrationError, match="nothing to do"):
        bench(engine, Effort()).prefills()


@pytest.mark.parametrize(
    "room",
    [
        pytest.param(ROOM, id="usual"),
        pytest.param(Room(8192, 23_168, 128, 64), id="large blocks"),
        pytest.param(Room(512, 640, 128, 4), id="tight"),
    ],
)
def test_what_is_measured_fits_the_engine(room):
    prompts, grid = prompt_sizes(room), batch_sizes(room, Effort())
    assert prompts
    assert grid
    for size in prompts:
        blocks = sum(-(-n // room.block_size_tokens) for n in size)
        assert blocks * room.block_size_tokens < room.capacity_tokens
        assert len(size) <= room.max_running
        assert max(size) < room.max_model_len
    for context, batches in grid.items():
        assert batches == sorted(batches)
        assert batches[-1] <= room.max_running
        assert batches[-1] * context < room.capacity_tokens


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "/no/such/folder"], "FERRY_MODEL='/no/such/folder': there is no such folder"),
        (["--kv-cache-gib", "much"], "FERRY_KV_CACHE_GIB='much': expected a number"),
        (["--threads", "-1"], "FERRY_ENGINE_THREADS='-1': expected a whole number"),
    ],
)
def test_a_setting_that_cannot_work_is_named(arguments, says, capsys):
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_engine_gives_a_file_that_the_simulator_reads(tmp_path: Path, capsys):
    path = tmp_path / "costs.json"
    arguments = ["--quick", "--no-copies", "--model", str(tiny_model()), "--kv-cache-gib", "0.02"]
    assert main([*arguments, "--out", str(path)]) == 0, capsys.readouterr().err
    costs = read_costs(path)
    assert costs.steps.decode_ms(1, 16) > 0
    assert costs.steps.prefill_ms([1024]) > costs.steps.prefill_ms([16])
    assert costs.engine.block_size_tokens == 128
    assert costs.engine.capacity_tokens > 30_000
    assert costs.copies is None
    assert str(tmp_path) not in path.read_text()
    assert "[costs]" in capsys.readouterr().out
