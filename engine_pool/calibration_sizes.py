"""Decides which sizes a calibration measures: those that fit the engine and its time. Pure."""

from dataclasses import dataclass
from typing import Final

PROMPT_LENGTHS: Final = (16, 64, 256, 512, 1024, 2048, 4096, 8192)
"""Tokens of single prompts."""
PROMPT_GROUPS: Final = ((16, 8), (64, 4), (256, 2), (256, 4), (512, 2), (512, 4))
"""Tokens and number of prompts that come together."""
CONTEXTS: Final = (16, 256, 1024, 4096)
"""Prompt tokens of the sequences that decode together."""
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
DECODE_STEPS: Final = 16
"""Of each point; the median of so many is good to a few percent on quiet cores."""
SETTLE_STEPS: Final = 3
"""After new sequences have come: caches and buffers grow in the first ones."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    tries: int = 3
    longest_s: float = 4.0
    """A size that takes longer is not repeated, and no larger one is measured."""
    decode_prefill_tokens: int = 8192
    """Most prompt tokens that are computed to get one context's batches."""


QUICK: Final = Effort(tries=1, longest_s=1.5, decode_prefill_tokens=2048)


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine takes."""

    max_model_len: int
    capacity_tokens: int
    block_size_tokens: int
    max_running: int

    def blocks_of(self, sequences: int, tokens: int) -> int:
        return sequences * -(-tokens // self.block_size_tokens)

    def holds(self, sequences: int, tokens: int) -> bool:
        """Says whether so many sequences of so many tokens fit beside each other."""
        # One block stays free: an engine that is full to the last one is not what is measured.
        blocks = self.blocks_of(sequences, tokens)
        fits = blocks < self.capacity_tokens // self.block_size_tokens
        return fits and sequences <= self.max_running and tokens <= self.max_model_len


def prompt_sizes(room: Room) -> list[tuple[int, ...]]:
    """Returns the prompts of each prefill, shortest work first."""
    sizes = [(n,) for n in PROMPT_LENGTHS] + [(n,) * k for n, k in PROMPT_GROUPS]
    fitting = [s for s in sizes if room.holds(len(s), s[0] + 1)]
    return sorted(fitting, key=lambda s: (sum(s), len(s)))


def batch_sizes(room: Room, effort: Effort) -> dict[int, list[int]]:
    """Returns the batches of each context, ascending."""
    longest = (len(BATCHES) + 1) * (DECODE_STEPS + SETTLE_STEPS)
    grid = {
        c: [
            b
            for b in BATCHES
            if room.holds(b, c + longest) and b * c <= effort.decode_prefill_tokens
        ]
        for c in CONTEXTS
    }
    return {c: batches for c, batches in grid.items() if batches}
