"""What the pool is now, as a scenario: where a "what if" starts from."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Final

from controlplane.gateway.models import RequestRecord
from controlplane.whatif.values import Scenario
from engine_pool.config import PoolConfig
from engine_pool.simulator.costs import LIVELY
from engine_pool.simulator.workload import CAP_TOKENS, MIXES
from engine_pool.types import EngineKind, PriorityClass

COSTS_FILE: Final = "costs.json"
"""Of engine_pool/calibrate.py, in the folder for what-if runs: this pool's own step times."""
WINDOW: Final = timedelta(minutes=10)
"""Of the requests that count as the present load; as long as the cluster page's charts."""
RECORDS_MAX: Final = 5000
RECORDS_MIN: Final = 5
"""Fewer say nothing about a rate."""
CV_MIN_RECORDS: Final = 30
SPAN_MIN_S: Final = 60.0
"""A pool that has just begun would seem to have a huge rate."""
REQUESTS: Final = 2000
"""A run of some seconds whose P99 rests on 20 requests."""
RATE_EACH: Final = 0.5
"""Requests a second of each instance if none came lately: a little under the knee of M-M."""
DEFAULT_MIX: Final = "M"
FITS: Final = 0.98
"""Share of an instance that one request may fill: admission leaves 1 % free."""


@dataclass(frozen=True, slots=True)
class RecentLoad:
    """The requests of the last minutes."""

    requests: int
    rate_per_s: float
    cv: float
    prompt_tokens: float
    """Mean."""
    output_tokens: float
    high_share: float


def recent_load(*, now: datetime, window: timedelta = WINDOW) -> RecentLoad | None:
    """Returns what came lately; None: too little to tell."""
    fields = ("arrived_at", "prompt_tokens", "output_tokens", "priority_class")
    rows = list(
        RequestRecord.objects.filter(arrived_at__gte=now - window, output_tokens__gt=0)
        .order_by("-arrived_at")
        .values_list(*fields)[:RECORDS_MAX]
    )
    if len(rows) < RECORDS_MIN:
        return None
    times = sorted(row[0].timestamp() for row in rows)
    gaps = [b - a for a, b in pairwise(times)]
    mean_gap = fmean(gaps)
    cv = pstdev(gaps) / mean_gap if len(rows) >= CV_MIN_RECORDS and mean_gap > 0 else 1.0
    return RecentLoad(
        requests=len(rows),
        rate_per_s=len(rows) / max(SPAN_MIN_S, now.timestamp() - times[0]),
        cv=cv,
        prompt_tokens=fmean(row[1] for row in rows),
        output_tokens=fmean(row[2] for row in rows),
        high_share=fmean(row[3] == PriorityClass.HIGH.value for row in rows),
    )


def nearest_mix(mean_tokens: float) -> str:
    """Returns the named mix whose mean is nearest, by ratio."""
    return min(MIXES, key=lambda m: abs(math.log(max(mean_tokens, 1) / MIXES[m].mean_tokens)))


def present_scenario(
    config: PoolConfig,
    load: RecentLoad | None,
    *,
    instances: int,
    capacity_tokens: int | None,
    costs_file: str = "",
) -> Scenario:
    """Returns the pool as it is, under the load that came lately or a named mix.

    `capacity_tokens`: as the instances report it; None: the simulator's own. `costs_file`: what was
    measured on this pool's engines; empty: nothing was.
    """
    count = max(1, instances)
    is_simulated = config.engine is EngineKind.SIMULATED
    scale = LIVELY.time_scale if is_simulated and not costs_file else 1.0
    pool: Scenario = {"instances": count, "max_running": config.max_running}
    if capacity_tokens:
        pool["capacity_tokens"] = capacity_tokens
    longest = _longest(config, capacity_tokens)
    workload: Scenario = {
        "requests": REQUESTS,
        "rate_per_s": _rounded(RATE_EACH * count / scale),
        "input": DEFAULT_MIX,
        "output": DEFAULT_MIX,
        "input_cap_tokens": longest,
        "output_cap_tokens": longest,
    }
    if load is not None:
        workload |= {
            "rate_per_s": _rounded(load.rate_per_s),
            "cv": _rounded(load.cv),
            "input": nearest_mix(load.prompt_tokens),
            "output": nearest_mix(load.output_tokens),
            "high_share": _rounded(load.high_share),
        }
    return {
        "name": "",
        "seed": 1,
        "pool": pool,
        "workload": workload,
        "costs": {"file": costs_file, "time_scale": scale},
        "policy": _policy(config, capacity_tokens),
        "scaling": _scaling(config),
    }


def _longest(config: PoolConfig, capacity_tokens: int | None) -> int:
    """Returns the longest prompt, and answer, so that both together fit an instance."""
    room = [2 * CAP_TOKENS]
    if config.max_model_len is not None:
        room.append(config.max_model_len)
    if capacity_tokens:
        room.append(int(capacity_tokens * FITS) - 2 * 16)
    return max(1, min(room) // 2)


def _policy(config: PoolConfig, capacity_tokens: int | None) -> Scenario:
    dispatch, rebalance = config.policy.dispatch, config.policy.rebalance
    target = dispatch.headroom.target_tokens(PriorityClass.HIGH, capacity_tokens or 0)
    policy: Scenario = {
        "dispatch": dispatch.kind.value,
        "queue": dispatch.queue.value,
        "packs_classes": dispatch.packs_classes,
        "elastic_headroom": dispatch.is_elastic,
        "lent_share": dispatch.lent_share,
        "late_binding": dispatch.is_late_binding,
        "late_floor_steps": dispatch.late_floor_steps,
        "late_pass_s": dispatch.late_pass_s,
        "migration": config.migration and rebalance.is_on,
        "below_steps": max(0.0, rebalance.below_steps),
        "above_steps": max(0.0, rebalance.above_steps),
        "rebalance_interval_ms": rebalance.interval_ms,
        "moves_per_instance": rebalance.moves_per_instance,
        "tokens_per_round": rebalance.tokens_per_round,
        "defragments": rebalance.defragments,
    }
    if target is not None:
        policy["high_target_load_tokens"] = target
    elif capacity_tokens:
        # No headroom: the class's target is the whole instance.
        policy["high_target_load_tokens"] = capacity_tokens
    return policy


def _scaling(config: PoolConfig) -> Scenario:
    rule = config.policy.scaling
    return {
        "enabled": rule.is_on,
        "min_instances": rule.min_instances,
        "max_instances": rule.max_instances,
        "low_steps": rule.low_steps,
        "high_steps": rule.high_steps,
        "check_interval_s": rule.check_interval_s,
        "grow_after_s": rule.grow_after_s,
        "shrink_after_s": rule.shrink_after_s,
    }


def _rounded(value: float) -> float:
    """Returns three significant digits: a form is no place for more."""
    return float(f"{value:.3g}")
