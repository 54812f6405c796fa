"""How far a drain is, from what the engine says of itself once a second. Pure arithmetic.

The engine counts what has left since its door was closed, so that the numbers are right also for a
pool process that was started in the middle of the drain.
"""

from engine_pool.policy.wishes import InstanceWish
from engine_pool.ports import Pong
from engine_pool.types import DrainProgress


def drain_progress(
    pong: Pong,
    wish: InstanceWish,
    now_unix_s: float,
    obstacle: str,
    verified_unix_s: float | None,
) -> DrainProgress:
    """`verified_unix_s`: when it was proven empty; None: not yet."""
    begun_unix_s = now_unix_s if pong.door_since_unix_s is None else pong.door_since_unix_s
    left = pong.running + pong.waiting
    gone = pong.moved_away + pong.ended
    estimate_s = 0.0 if verified_unix_s is not None else None
    if left and gone:
        estimate_s = round(left * max(0.0, now_unix_s - begun_unix_s) / gone, 1)
    return DrainProgress(
        begun_unix_s=begun_unix_s,
        requests_at_start=max(pong.requests_at_closing, left),
        left=left,
        moving=min(left, pong.moves),
        moved=pong.moved_away,
        ended=pong.ended,
        estimate_s=estimate_s,
        deadline_unix_s=wish.deadline_unix_s,
        leftover=wish.leftover.value,
        obstacle=obstacle if left else "",
        verified_unix_s=verified_unix_s,
    )


def is_empty(pong: Pong) -> bool:
    """Says whether nothing is there and nothing can come: closed, no request, no used block, no
    move."""
    return bool(pong.door) and not (pong.running or pong.waiting or pong.used_tokens or pong.moves)
