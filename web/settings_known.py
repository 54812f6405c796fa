"""The settings of classes, SLOs and prices, with what each of them does."""

from typing import Final

from web.settings_fields import Field

CLASS_FIELDS: Final = (
    Field(
        "headroom_tokens", "Headroom, tokens",
        "KV cache kept free on an instance that serves the class; lower classes stay out of it.",
        "whole", "tokens", "none", is_optional=True,
    ),
    Field(
        "headroom_share", "Headroom, share",
        "The same as a share of the instance's KV cache, 0 to 0.95; give one of both, or neither.",
        "number", "of KV", "none", is_optional=True,
    ),
    Field(
        "ageing_s", "Ageing",
        "A request that waits so long counts as one class higher; 0: never; empty: the pool's.",
        "number", "s", "the pool's", is_optional=True, empty_words="the pool's",
    ),
    Field(
        "is_preemptible", "May make room",
        "Its running requests may be preempted for a waiting one of a higher class.",
        "switch", "", "on",
    ),
)  # fmt: skip

SLO_FIELDS: Final = (
    Field("ttft_ms", "Time to first token", "Longest; from the arrival to the first token.",
          "number", "ms", "none", is_optional=True),
    Field("tpot_ms", "Time per output token", "Longest mean time per token after the first.",
          "number", "ms", "none", is_optional=True),
    Field("objective", "Objective", "Share of requests that meet all targets, 50 to 99.99 %.",
          "number", "%", "99"),
    Field("window_days", "Window", "Over which attainment and budget are counted, 1 to 90 days.",
          "whole", "days", "28"),
)  # fmt: skip

PRICE_FIELDS: Final = (
    Field("prompt_per_million", "Prompt", "A million prompt tokens that were computed.",
          "decimal", "/M tokens", "0"),
    Field("cached_per_million", "Cached prompt", "A million prompt tokens found in the cache.",
          "decimal", "/M tokens", "0"),
    Field("output_per_million", "Output", "A million tokens of the answer.",
          "decimal", "/M tokens", "0"),
)  # fmt: skip
