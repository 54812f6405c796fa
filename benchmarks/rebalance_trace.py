"""A recorded trace, scaled so that a small machine can serve it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from engine_pool.simulator.sim_request import Arrival
from engine_pool.simulator.trace import TraceRow
from engine_pool.simulator.workload import replay

EXCERPT: Final = Path(__file__).parent / "data" / "azure_llm_2023_conv_excerpt.csv"
LEAST_PROMPT_TOKENS: Final = 8
LEAST_OUTPUT_TOKENS: Final = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """How the trace is made to fit this machine."""

    requests: int
    """Of one round."""
    rate_per_s: float
    prompt_factor: float
    output_factor: float
    max_model_len: int
    high_share: float


def arrivals_of(rows: Sequence[TraceRow], number: int, scale: Scale) -> list[Arrival]:
    """Returns round `number`'s requests: a part of the trace of its own, as long as it lasts."""
    count = min(scale.requests, len(rows))
    first = number * count % (len(rows) - count + 1)
    longest_output = scale.max_model_len // 2
    part = [
        replace(
            row,
            prompt_tokens=max(LEAST_PROMPT_TOKENS, round(row.prompt_tokens * scale.prompt_factor)),
            output_tokens=max(LEAST_OUTPUT_TOKENS, round(row.output_tokens * scale.output_factor)),
        )
        for row in rows[first : first + count]
    ]
    return replay(
        part,
        rate_per_s=scale.rate_per_s,
        input_cap_tokens=scale.max_model_len - longest_output - 1,
        output_cap_tokens=longest_output,
        high_share=scale.high_share,
        seed=number + 1,
    )
