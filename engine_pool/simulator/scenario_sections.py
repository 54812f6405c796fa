"""The sections of a scenario: every field with its default and its check.

Defaults of rules and costs are those of policy/settings.py and costs.py.
"""

from dataclasses import dataclass, field

from engine_pool.policy.settings import (
    DispatchKind,
    DispatchRule,
    QueueRule,
    RebalanceRule,
    ScalingRule,
)
from engine_pool.simulator.costs import (
    A10_CAPACITY_BLOCKS,
    BLOCK_SIZE_TOKENS,
    WATERMARK,
    CopyCosts,
    StepCosts,
)
from engine_pool.simulator.scenario_fields import (
    flag,
    number,
    one_of,
    optional,
    setting,
    text,
    whole,
)
from engine_pool.simulator.workload import CAP_TOKENS, MIXES
from engine_pool.types import PriorityClass

_STEPS, _COPIES = StepCosts(), CopyCosts()
_DISPATCH, _REBALANCE, _SCALING = DispatchRule(), RebalanceRule(), ScalingRule()
_COST = number(0)


@dataclass(frozen=True, slots=True)
class PoolSection:
    """The engines; with scaling these are the first ones."""

    instances: int = setting(16, whole(1, 4096))
    capacity_tokens: int = setting(A10_CAPACITY_BLOCKS * BLOCK_SIZE_TOKENS, whole(1))
    """KV memory of one instance."""
    block_size_tokens: int = setting(BLOCK_SIZE_TOKENS, whole(1, 1024))
    max_running: int = setting(256, whole(1))
    """Requests in one step (vLLM's max_num_seqs)."""
    max_prefill_tokens: int = setting(8192, whole(1))
    """Prompt tokens of one step; a longer prompt has a step of its own."""
    watermark: float = setting(WATERMARK, number(0, 0.5))
    """Share of the memory that admission leaves free."""


@dataclass(frozen=True, slots=True)
class WorkloadSection:
    """Which requests come when."""

    kind: str = setting("lengths", one_of(("lengths", "trace")))
    requests: int = setting(10_000, whole(1, 10_000_000))
    """Of a trace: its first ones."""
    rate_per_s: float | None = setting(7.5, optional(number(0.001)))
    """Of the whole pool."""
    as_recorded: bool = setting(False, flag())
    """A trace keeps its own times; the rate is not used then."""
    cv: float = setting(1.0, number(0, 100))
    """Coefficient of variation of the gaps between arrivals: 1 is Poisson, more is Gamma."""
    input: str = setting("M", one_of(tuple(MIXES)))
    output: str = setting("M", one_of(tuple(MIXES)))
    input_cap_tokens: int = setting(CAP_TOKENS, whole(1))
    output_cap_tokens: int = setting(CAP_TOKENS, whole(1))
    high_share: float = setting(0.0, number(0, 1))
    """Part of the requests that is of the high class."""
    file: str = setting("", text())
    """Of the trace; relative to the scenario's file."""


@dataclass(frozen=True, slots=True)
class CostsSection:
    """How long things take: costs.StepCosts and, with `copy_` before their names, CopyCosts."""

    prefill_base_ms: float = setting(_STEPS.prefill_base_ms, _COST)
    prefill_ms_per_token: float = setting(_STEPS.prefill_ms_per_token, _COST)
    prefill_ms_per_square_token: float = setting(_STEPS.prefill_ms_per_square_token, _COST)
    decode_base_ms: float = setting(_STEPS.decode_base_ms, number(0, is_exclusive=True))
    decode_ms_per_sequence: float = setting(_STEPS.decode_ms_per_sequence, _COST)
    decode_ms_per_kv_token: float = setting(_STEPS.decode_ms_per_kv_token, _COST)
    copy_base_ms: float = setting(_COPIES.base_ms, _COST)
    copy_full_blocks: int = setting(_COPIES.full_blocks, whole(1))
    copy_ms_per_token: float = setting(_COPIES.ms_per_token, _COST)
    copy_slowdown: float = setting(0.023, number(0, 10))
    """How much longer decode steps take at both ends of a copy, as a share (Llumnix: 2.3 %)."""
    message_ms: float = setting(0.5, _COST)
    """One way of a message between two engines, or to the store."""
    time_scale: float = setting(1.0, number(0, 1000, is_exclusive=True))
    """Multiplies every duration: 1.2 is about the paper's own, older engine."""
    file: str = setting("", text())
    """What the calibration command measured (cost_file.py), relative to the scenario's file; what
    the section itself says goes first."""


@dataclass(frozen=True, slots=True)
class PolicySection:
    """The rules (policy/settings.py says what each does), and what decisions see."""

    dispatch: DispatchKind = field(default=_DISPATCH.kind, metadata={"check": one_of(DispatchKind)})
    queue: QueueRule = field(default=_DISPATCH.queue, metadata={"check": one_of(QueueRule)})
    priorities: bool = setting(True, flag())
    """Off: requests keep their class in the numbers, and nothing else knows it."""
    packs_classes: bool = setting(_DISPATCH.packs_classes, flag())
    elastic_headroom: bool = setting(_DISPATCH.is_elastic, flag())
    lent_share: float = setting(_DISPATCH.lent_share, number(0, 1))
    high_target_load_tokens: int = setting(
        _DISPATCH.headroom.target_load_tokens[PriorityClass.HIGH], whole(0)
    )
    """Load up to which the high class is served at ideal speed; the rest is its headroom."""
    late_binding: bool = setting(_DISPATCH.is_late_binding, flag())
    late_floor_steps: float = setting(_DISPATCH.late_floor_steps, number(0))
    late_pass_s: float = setting(_DISPATCH.late_pass_s, number(0))
    migration: bool = setting(_REBALANCE.is_on, flag())
    below_steps: float = setting(_REBALANCE.below_steps, number(0))
    above_steps: float = setting(_REBALANCE.above_steps, number(0))
    rebalance_interval_ms: float = setting(_REBALANCE.interval_ms, number(1))
    moves_per_instance: int = setting(_REBALANCE.moves_per_instance, whole(1))
    tokens_per_round: int = setting(_REBALANCE.tokens_per_round, whole(1))
    defragments: bool = setting(_REBALANCE.defragments, flag())
    report_interval_ms: float = setting(100.0, number(0))
    """How often instances report; 0: decisions see them as they are."""
    ledger: bool = setting(True, flag())
    """Whether decisions know what was sent since the last report."""


@dataclass(frozen=True, slots=True)
class ScalingSection:
    enabled: bool = setting(_SCALING.is_on, flag())
    min_instances: int = setting(_SCALING.min_instances, whole(1))
    max_instances: int = setting(_SCALING.max_instances, whole(1, 4096))
    low_steps: float = setting(_SCALING.low_steps, number(0))
    high_steps: float = setting(_SCALING.high_steps, number(0))
    check_interval_s: float = setting(_SCALING.check_interval_s, number(0.01))
    grow_after_s: float = setting(_SCALING.grow_after_s, number(0))
    shrink_after_s: float = setting(_SCALING.shrink_after_s, number(0))
    survivors_share: float = setting(_SCALING.survivors_share, number(0, 1))
    grow_cooldown_s: float = setting(_SCALING.grow_cooldown_s, number(0))
    shrink_cooldown_s: float = setting(_SCALING.shrink_cooldown_s, number(0))
    start_delay_s: float = setting(20.0, number(0))
    """From the decision until an instance serves."""
