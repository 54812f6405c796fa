"""The fields of a what-if run's form, by group, and what a run can be compared with.

A field's name is `section.field` of a scenario, so that the simulator's complaints find their
place.
"""

from dataclasses import dataclass
from typing import Final

from controlplane.whatif.limits import INSTANCES_MAX, REQUESTS_MAX


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `kind`: whole, number, share (in percent), switch or choice."""

    name: str
    label: str
    kind: str
    unit: str = ""
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()


_MIXES: Final = (("S", "short, mean 128"), ("M", "medium, mean 256"), ("L", "long, mean 512"))
TRACE: Final = "workload.file"
COSTS: Final = "costs.file"
DRAWN: Final = ("", "drawn from the mixes")
BUILT_IN: Final = ("", "LLaMA-7B on an A10")
GROUPS: Final[tuple[tuple[str, tuple[Field, ...]], ...]] = (
    (
        "Pool",
        (
            Field("pool.instances", "Instances", "whole", help=f"At most {INSTANCES_MAX}."),
            Field("pool.capacity_tokens", "KV cache of each", "whole", "tokens"),
            Field("pool.max_running", "Batch, at most", "whole", "requests"),
            Field(COSTS, "Step times of", "choice"),
            Field("costs.time_scale", "Times that", "number", "x", "More than 1 is slower."),
        ),
    ),
    (
        "Load",
        (
            Field("workload.requests", "Requests", "whole", help=f"At most {REQUESTS_MAX:,}."),
            Field("workload.rate_per_s", "Arrivals, whole pool", "number", "a second"),
            Field("workload.cv", "Burstiness", "number", "CV", "1 is Poisson; 4 comes in bursts."),
            Field(TRACE, "Lengths", "choice"),
            Field("workload.input", "Prompts", "choice", choices=_MIXES),
            Field("workload.output", "Answers", "choice", choices=_MIXES),
            Field("seed", "Seed", "whole", help="Another one draws another load."),
        ),
    ),
    (
        "Policy",
        (
            Field("policy.migration", "Running requests move", "switch"),
            Field(
                "policy.below_steps",
                "From instances under",
                "number",
                "steps",
                "Freeness, in decode steps.",
            ),
            Field("policy.above_steps", "To instances over", "number", "steps"),
            Field("policy.rebalance_interval_ms", "A round each", "number", "ms"),
            Field(
                "policy.dispatch",
                "New requests go to",
                "choice",
                choices=(("freest", "the freest"), ("round_robin", "each in turn")),
            ),
            Field(
                "policy.late_binding",
                "Wait at the gateway",
                "switch",
                help="Until an instance has room, instead of in its queue.",
            ),
        ),
    ),
    (
        "Priorities",
        (
            Field("policy.priorities", "Classes count", "switch"),
            Field("workload.high_share", "Requests of the high class", "share", "%"),
            Field(
                "policy.high_target_load_tokens",
                "Load that high ones bear",
                "whole",
                "tokens",
                "The rest of their instance is headroom.",
            ),
            Field("policy.packs_classes", "High ones share instances", "switch"),
        ),
    ),
    (
        "Scaling",
        (
            Field("scaling.enabled", "Instances come and go", "switch"),
            Field("scaling.min_instances", "At least", "whole", "instances"),
            Field("scaling.max_instances", "At most", "whole", "instances"),
            Field("scaling.low_steps", "Add under", "number", "steps", "Average freeness."),
            Field("scaling.high_steps", "Drain over", "number", "steps"),
            Field("scaling.start_delay_s", "A start takes", "number", "s"),
        ),
    ),
)
FIELDS: Final = {field.name: field for _, fields in GROUPS for field in fields}
COMPARE: Final = (
    ("now", "the pool and rules as they are now", "as now"),
    ("still", "the same, but nothing moves", "nothing moves"),
    ("in_turn", "each in turn, and nothing moves", "each in turn"),
    ("none", "nothing", ""),
)
"""What the form offers to compare with: its key, its words, the label in results."""
