"""The rules' numbers: one value each for dispatch, rebalancing and scaling, the same live and
simulated.

The defaults are those that `python -m benchmarks.paper` shows for every mix of lengths. Unit of
every freeness: KV tokens a request, which is decode steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine_pool.types import PriorityClass

DEFAULT_TARGET_LOAD_TOKENS = 1600
"""Load at which the paper's engine still decodes at ideal speed (LLaMA-7B on an A10)."""


class DispatchKind(StrEnum):
    FREEST = "freest"
    ROUND_ROBIN = "round_robin"
    """In turn, whatever the load: a baseline to compare with."""


class QueueRule(StrEnum):
    """What of an instance's queue counts against it at dispatch."""

    ALL = "all"
    HEAD = "head"
    """The head of the line only (Llumnix, Algorithm 1)."""


@dataclass(frozen=True, slots=True)
class HeadroomRule:
    """How much of an instance each class wants to keep free, in KV tokens."""

    target_load_tokens: Mapping[PriorityClass, int] = field(
        default_factory=lambda: {PriorityClass.HIGH: DEFAULT_TARGET_LOAD_TOKENS}
    )
    """Load up to which the class is served at ideal speed; a class without one has no headroom."""
    kept: Mapping[PriorityClass, "Kept"] = field(default_factory=dict)
    """What operators want kept free instead, whatever the class's target load."""

    def has_headroom(self, priority_class: PriorityClass) -> bool:
        kept = self.kept.get(priority_class)
        return priority_class in self.target_load_tokens if kept is None else not kept.is_nothing

    def target_tokens(self, priority_class: PriorityClass, capacity_tokens: int) -> int | None:
        """Returns the load up to which the class is packed on an instance; None: no headroom."""
        if not self.has_headroom(priority_class):
            return None
        kept = self.kept.get(priority_class)
        if kept is None:
            return self.target_load_tokens[priority_class]
        return max(0, capacity_tokens - kept.tokens - int(kept.share * capacity_tokens))

    def headroom_tokens(self, priority_class: PriorityClass, capacity_tokens: int) -> int:
        """Returns capacity minus target load, at least 0."""
        target_tokens = self.target_tokens(priority_class, capacity_tokens)
        return 0 if target_tokens is None else max(0, capacity_tokens - target_tokens)


@dataclass(frozen=True, slots=True)
class Kept:
    """Headroom of a class on an instance that serves it: tokens, or a share of its KV cache."""

    tokens: int = 0
    share: float = 0.0
    """0 to 1."""

    @property
    def is_nothing(self) -> bool:
        return not self.tokens and not self.share


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """Where new requests go."""

    kind: DispatchKind = DispatchKind.FREEST
    queue: QueueRule = QueueRule.ALL
    watermark: float = 0.01
    """Share of its capacity that an engine keeps free at admission (Llumnix)."""
    headroom: HeadroomRule = field(default_factory=HeadroomRule)
    packs_classes: bool = True
    """Requests of a class with headroom go to instances that serve the class already, up to its
    target load, and lower classes keep away from those."""
    is_elastic: bool = True
    """Where a lower class would have to wait everywhere else, it may use headroom."""
    lent_share: float = 0.5
    """How much of the headroom it may use then. With all of it the high class gains less than 12 %;
    with none of it memory lies idle while normal requests wait (benchmarks.paper)."""
    prefix_min_tokens: int = 64
    """A cached prefix of fewer tokens does not decide: its prefill is shorter than a step."""
    prefix_min_share: float = 0.5
    """Part of the prompt that must be cached to decide."""
    prefix_floor_steps: float = 160.0
    """An instance that holds the prefix is preferred as long as it stays at least this free with
    the request: the low end of the scaling band, under which instances count as full."""
    is_late_binding: bool = False
    """Requests wait at the gateway until an instance has room for them, not in an engine's
    queue."""
    late_floor_steps: float = 0.0
    """How free an instance must stay with a request to get it from the gateway's queue."""
    late_pass_s: float = 30.0
    """How long smaller requests may pass a head of the gateway's queue that fits nowhere."""


@dataclass(frozen=True, slots=True)
class RebalanceRule:
    """Which running requests move."""

    is_on: bool = True
    below_steps: float = 48.0
    """Sources are instances less free than this: 3 blocks a request (Llumnix)."""
    above_steps: float = 48.0
    """Destinations are instances freer than this; not below `below_steps`."""
    interval_ms: float = 200.0
    moves_per_instance: int = 2
    """Moves that come to, or go from, one instance at the same time."""
    tokens_per_round: int = 65_536
    """KV tokens that one round may set on their way: bounds what one wrong picture can cost."""
    report_max_age_s: float = 5.0
    """Older reports are not acted on; the pages call them stale, too."""
    defragments: bool = True
    """A head of the line that fits nowhere gets the one move that makes room for it."""

    def __post_init__(self) -> None:
        if self.above_steps < self.below_steps:
            raise ValueError(
                f"above_steps ({self.above_steps:g}) must not be under below_steps "
                f"({self.below_steps:g}): an instance would be source and destination"
            )


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """How many instances there are."""

    is_on: bool = False
    low_steps: float = 160.0
    """Average freeness under which instances are added: 10 blocks a request (Llumnix)."""
    high_steps: float = 960.0
    """Average freeness over which one is drained: 60 blocks a request."""
    min_instances: int = 1
    max_instances: int = 16
    window: str = ""
    """Name of the schedule's window that the bounds are of; empty: they are the pool's own."""
    check_interval_s: float = 10.0
    grow_after_s: float = 0.0
    """How long the average must have been under the band. 0: at the first check that finds it so; a
    start takes longer than any check, and the average is the whole pool's."""
    shrink_after_s: float = 10.0
    """How long over the band. Longer than growing: a drain can be taken back, but has moved
    requests by then."""
    grow_cooldown_s: float = 0.0
    """After a growth, until the next one. 0: one that starts counts with its memory already."""
    shrink_cooldown_s: float = 0.0
    """After any change, until an instance is drained."""
    ttft_attainment_floor: float | None = None
    """Share of requests within their TTFT target, queue included, under which the pool grows; None:
    they are not looked at."""
    zero_after_s: float | None = None
    """Idle for so long, the last instance is drained as well, if `min_instances` is 0; None:
    never."""
    survivors_share: float = 0.5
    """How high in the band (0 its low end, 1 its high end) the average must still be without the
    instance that is drained. At 0, as in the paper, two instances that are a little too free become
    one that is nearly full, and the next few requests bring the other back."""
    report_max_age_s: float = 5.0
    """Older reports are none; the pages call them stale, too."""
    silent_hold_s: float = 60.0
    """An instance without a report stops all changes for so long: it may be back any moment, or
    counted as dead by the pool process. After that it counts as full: the others may grow beside
    it, and nothing shrinks."""

    @property
    def survivors_steps(self) -> float:
        """The average that must be left after a drain."""
        return self.low_steps + self.survivors_share * (self.high_steps - self.low_steps)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    dispatch: DispatchRule = field(default_factory=DispatchRule)
    rebalance: RebalanceRule = field(default_factory=RebalanceRule)
    scaling: ScalingRule = field(default_factory=ScalingRule)
