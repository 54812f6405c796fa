"""Small worlds for tests: one engine with a clock that is moved by hand, and short scenarios."""

from collections.abc import Mapping
from heapq import heappop, heappush

from engine_pool.simulator.costs import StepCosts
from engine_pool.simulator.engine_model import Engine, EngineLimits
from engine_pool.simulator.scenario import Scenario, scenario_of
from engine_pool.simulator.sim_request import Arrival, SimRequest, request_of
from engine_pool.types import PriorityClass

COSTS = StepCosts()


def limits(
    blocks: int = 100,
    *,
    max_running: int = 64,
    max_prefill_tokens: int = 4096,
    watermark: float = 0.0,
    copy_slowdown: float = 0.0,
) -> EngineLimits:
    return EngineLimits(blocks * 16, 16, max_running, max_prefill_tokens, watermark, copy_slowdown)


def request(
    index: int,
    prompt: int,
    output: int,
    *,
    arrival_s: float = 0.0,
    of: PriorityClass = PriorityClass.NORMAL,
) -> SimRequest:
    return request_of(Arrival(index, arrival_s, prompt, output, of), has_priorities=True)


class Bench:
    """One engine and nothing else: implements Surroundings."""

    def __init__(self, engine_limits: EngineLimits | None = None) -> None:
        self.now_s = 0.0
        self.finished_in_order: list[SimRequest] = []
        self.preempted_in_order: list[SimRequest] = []
        self.engine = Engine("i-1", engine_limits or limits(), COSTS, self)
        self._wakes: list[tuple[float, int]] = []

    def wake_at(self, engine: Engine, at_s: float) -> None:
        heappush(self._wakes, (at_s, engine.version))

    def finished(self, r: SimRequest, now_s: float) -> None:
        self.finished_in_order.append(r)

    def preempted(self, r: SimRequest, now_s: float) -> None:
        self.preempted_in_order.append(r)

    def add(self, *requests: SimRequest) -> None:
        self.engine.touch(self.now_s)
        for r in requests:
            self.engine.enqueue(r, self.now_s)

    def run(self, until_s: float = float("inf")) -> None:
        """Lets the engine work until then, or until it rests."""
        while self._wakes and self._wakes[0][0] <= until_s:
            self.now_s, version = heappop(self._wakes)
            if version == self.engine.version:
                self.engine.touch(self.now_s)
                self.engine.wake(self.now_s)
                self.engine.check_integrity()
        if until_s != float("inf"):
            self.now_s = until_s
            self.engine.touch(until_s)


def small(
    *,
    seed: int = 1,
    pool: Mapping[str, object] | None = None,
    workload: Mapping[str, object] | None = None,
    policy: Mapping[str, object] | None = None,
    scaling: Mapping[str, object] | None = None,
    costs: Mapping[str, object] | None = None,
) -> Scenario:
    """A pool of four engines and 200 requests that are too many for it."""
    return scenario_of(
        {
            "seed": seed,
            "pool": {"instances": 4, "capacity_tokens": 4096, **(pool or {})},
            "workload": {
                "requests": 200,
                "rate_per_s": 6.0,
                "input_cap_tokens": 1500,
                "output_cap_tokens": 1500,
                **(workload or {}),
            },
            "policy": policy or {},
            "scaling": scaling or {},
            "costs": costs or {},
        }
    )
