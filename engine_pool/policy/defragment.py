"""The one move that lets a blocked head of the line in, when free memory is there but scattered.

A request that waits at the head of its line and fits nowhere, although the pool has enough free
memory together, gets room by moving one running request away (Llumnix, OSDI 2024, section 4.1,
de-fragmentation). The smallest request that makes enough room goes to the instance with the least
room that still takes it, so that large holes stay whole.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine_pool.policy.selection import Movable
from engine_pool.policy.standing import Standing
from engine_pool.types import InstanceName

R = TypeVar("R", bound=Movable)


@dataclass(frozen=True, slots=True)
class RoomMove(Generic[R]):
    request: R
    source: InstanceName
    destination: InstanceName
    reason: str


def make_room(
    source: Standing,
    need_tokens: int,
    standings: Sequence[Standing],
    requests_of: Callable[[InstanceName], Iterable[R]],
    watermark: float,
) -> RoomMove[R] | None:
    """Returns the move that makes `source` free enough for a head of the line of `need_tokens`.

    None when it fits as it is, when it fits elsewhere (it should go there instead), when one move
    does not do, or when nobody has room for what would have to go.
    """
    short_tokens = need_tokens - source.room_tokens(watermark)
    if short_tokens <= 0:
        return None
    places = sorted(
        (s for s in standings if s.instance != source.instance and s.can_receive),
        key=lambda s: (s.room_tokens(watermark), s.instance),
    )
    if places and need_tokens <= places[-1].room_tokens(watermark):
        return None
    fit = (r for r in requests_of(source.instance) if r.can_move and r.kv_tokens >= short_tokens)
    for r in sorted(fit, key=lambda r: (-r.rank, r.need_tokens, r.name)):
        place = next((s for s in places if r.need_tokens <= s.room_tokens(watermark)), None)
        if place is not None:
            why = (
                f"the head of the line of {source.instance} needs {need_tokens} KV tokens, "
                f"{short_tokens} more than are free there, and fits nowhere else; "
                f"this request makes room and fits into {place.instance}"
            )
            return RoomMove(r, source.instance, place.instance, why)
    return None
