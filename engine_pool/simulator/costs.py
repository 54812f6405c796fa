"""How long a simulated engine's steps and copies take. Durations are milliseconds.

The defaults are fits to Llumnix's published plots for LLaMA-7B on an A10. Costs of a real engine
come from a file that `python -m engine_pool.calibrate` writes (cost_file.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The latency model; `time_scale` multiplies every duration."""

    prefill_base_ms: float = 5.58
    prefill_ms_per_token: float = 0.2028
    prefill_ms_per_square_token: float = 5.09e-6
    decode_base_ms: float = 35.5
    decode_ms_per_sequence: float = 0.286
    decode_ms_per_kv_token: float = 0.00087
    time_scale: float = 1.0
    """1.0 is the A10 of the paper; LIVELY is quicker."""

    def prefill_ms(self, prompt_tokens: Iterable[int]) -> float:
        """Returns the duration of one prefill step over whole prompts; 0 when there is none."""
        prompts = list(prompt_tokens)
        if not prompts:
            return 0.0
        work = sum(
            self.prefill_ms_per_token * n + self.prefill_ms_per_square_token * n * n
            for n in prompts
        )
        return self.time_scale * (self.prefill_base_ms + work)

    def decode_ms(self, sequences: int, kv_tokens: int) -> float:
        """Returns the duration of one decode step; 0 for an empty batch."""
        if sequences == 0:
            return 0.0
        batch = self.decode_ms_per_sequence * sequences + self.decode_ms_per_kv_token * kv_tokens
        return self.time_scale * (self.decode_base_ms + batch)


LIVELY = StepCosts(time_scale=0.75)
"""For demos: 27 ms a step for one request, 35 ms for 32, about as fast as people like to read
along."""

A10_CAPACITY_BLOCKS = 800
"""KV blocks of 16 tokens; the paper's engines had 785-862."""
BLOCK_SIZE_TOKENS = 16
WATERMARK = 0.01
"""Share of the blocks that admission leaves free, so that the batch can grow (Llumnix)."""

KV_TOKEN_BYTES = 524_288
"""LLaMA-7B: 32 layers, K and V, 32 heads of 128 halves."""
MODEL_LAYERS = 32


@dataclass(frozen=True, slots=True)
class CopyCosts:
    """How long KV takes from one engine to another (fit of the published stop-and-copy times)."""

    base_ms: float = 15.0
    """Of a copy of `full_blocks` or more: handshake, fusing, writing."""
    full_blocks: int = 4
    """A smaller copy has a part of the base: the last one, of one or two blocks, takes 7 to 14 ms,
    which with commit and step boundary makes the published downtime of 13 to 26 ms."""
    ms_per_token: float = 0.211
    time_scale: float = 1.0
    block_size_tokens: int = BLOCK_SIZE_TOKENS
    kv_token_bytes: int = KV_TOKEN_BYTES

    def copy_ms(self, blocks: int) -> float:
        """Returns the duration of one copy of whole blocks."""
        base_ms = self.base_ms * min(1.0, blocks / self.full_blocks)
        return self.time_scale * (base_ms + self.ms_per_token * blocks * self.block_size_tokens)

    def bytes_ms(self, size_bytes: int) -> float:
        """Returns the duration of nothing but sending."""
        return self.time_scale * self.ms_per_token * size_bytes / self.kv_token_bytes
