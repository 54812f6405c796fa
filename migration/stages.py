"""How many copies a move makes, and what it will take: pure arithmetic.

Blocks that are full never change, so they are copied while the request decodes; what it fills
meanwhile goes with the next copy (Llumnix, OSDI 2024, section 4.2). When little is left, the rest
goes while the request stands still.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Bounds of the copying; from PoolConfig."""

    copies_max: int
    """Copies before the pause. A source that fills blocks faster than it sends them would copy for
    ever."""
    last_blocks: int
    """Complete blocks that may be left for the pause: each lengthens it by its transfer."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy `blocks` more, the request goes on."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop the request and send the rest."""


def next_stage(
    *, complete_blocks: int, sent_blocks: int, copies: int, limits: StageLimits
) -> Copy | Pause:
    """Decides what comes next, after `copies` copies that brought over `sent_blocks` blocks (those
    that the destination had cached included)."""
    left = complete_blocks - sent_blocks
    if left <= limits.last_blocks or copies >= limits.copies_max:
        return Pause()
    return Copy(left)


def room_tokens(computed_tokens: int, block_size_tokens: int) -> int:
    """Returns for how many tokens the destination reserves: one block beyond the one that is being
    filled, so that the request may grow during a stage and the last stage needs no question."""
    return (computed_tokens // block_size_tokens + 2) * block_size_tokens


@dataclass(frozen=True, slots=True)
class Way:
    """What was measured between two instances."""

    bytes_per_s: float
    """Of a large transfer, gathering and writing included."""
    round_trip_ms: float
    """Of a small message."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a move of one length would take."""

    tokens: int
    copy_blocks: tuple[int, ...]
    """Blocks of each copy before the pause."""
    last_blocks: int
    copy_ms: float
    downtime_ms: float
    bytes: int


def predict(
    *,
    tokens: int,
    block_size_tokens: int,
    block_bytes: int,
    way: Way,
    step_ms: float,
    limits: StageLimits,
    copy_share: float,
) -> Prediction:
    """Predicts a move of a request of `tokens` tokens that decodes one token a `step_ms`.

    `copy_share` (0-1]: the part of the time that unhurried copying takes (PoolConfig).
    Raises: ValueError when a rate or a size is not positive.
    """
    if min(tokens, block_size_tokens, block_bytes, step_ms, way.bytes_per_s, copy_share) <= 0:
        raise ValueError("tokens, sizes, step time, bandwidth and share must be above 0")
    block_ms = block_bytes / way.bytes_per_s * 1000
    copies: list[int] = []
    sent, elapsed_ms = 0, 0.0
    while True:
        complete = (tokens + int(elapsed_ms / step_ms)) // block_size_tokens
        stage = next_stage(
            complete_blocks=complete, sent_blocks=sent, copies=len(copies), limits=limits
        )
        if isinstance(stage, Pause):
            break
        copies.append(stage.blocks)
        sent += stage.blocks
        elapsed_ms += stage.blocks * block_ms / copy_share + way.round_trip_ms * 2
    last = complete - sent + 1
    # The last blocks, the commit's round trip, half a step until the destination looks, and a step.
    downtime_ms = last * block_ms + way.round_trip_ms * 2 + step_ms * 1.5
    return Prediction(
        tokens, tuple(copies), last, elapsed_ms, downtime_ms, (sent + last) * block_bytes
    )
