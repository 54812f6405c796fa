"""An instance's sums as they will be when a planned move has ended. Changes nothing itself."""

from collections.abc import Sequence
from dataclasses import replace

from engine_pool.policy.selection import Movable
from engine_pool.policy.standing import Standing


def sums_without(s: Standing, r: Movable, next_head_tokens: int) -> Standing:
    """Returns the sums of a source that a request leaves. `next_head_tokens`: what the head of the
    line needs then; it counts only while somebody waits."""
    if r.kv_tokens == 0:
        demand_tokens = r.need_tokens - s.block_size_tokens
        queued = _changed(s.queued, r.rank, -1)
        return replace(
            s,
            queued=queued,
            queued_tokens=_changed(s.queued_tokens, r.rank, -demand_tokens),
            head_tokens=next_head_tokens if any(queued) else 0,
        )
    return replace(
        s,
        used_tokens=max(0, s.used_tokens - r.kv_tokens),
        running=_changed(s.running, r.rank, -1),
        running_tokens=_changed(s.running_tokens, r.rank, -r.kv_tokens),
    )


def sums_with(s: Standing, r: Movable) -> Standing:
    """Returns the sums of a destination that a request comes to. A queued one, too, counts as
    running: destinations have no queue."""
    return replace(
        s,
        used_tokens=s.used_tokens + r.need_tokens,
        running=_changed(s.running, r.rank, 1),
        running_tokens=_changed(s.running_tokens, r.rank, r.need_tokens),
    )


def _changed(counts: Sequence[int], rank: int, by: int) -> list[int]:
    after = list(counts)
    after[rank] = max(0, after[rank] + by)
    return after
