"""What a producer finds out from the end of a log, when an answer of the store was lost."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import redis

from engine_pool.errors import StoreUnavailable
from engine_pool.frames import entry_position, error_frame
from engine_pool.token_log import StreamError, TokenFrame, log_key

_GIVEN_UP = StreamError(StoreUnavailable.code, "The stream was given up: the store was away.")


def read_end(store: "redis.Redis[bytes]", request_id: str) -> tuple[int, int] | None:
    """Returns epoch and position of a log's last entry; None when there is no log.

    Raises: redis.RedisError.
    """
    entries = store.xrevrange(log_key(request_id), count=1)
    if not entries:
        return None
    epoch, _, position = entries[0][0].decode().partition("-")
    return int(epoch), int(position)


def taken_before(store: "redis.Redis[bytes]", frames: Iterable[TokenFrame]) -> set[str]:
    """Returns the requests whose refused frames an earlier try has brought in after all.

    Raises: redis.RedisError.
    """
    taken = set()
    for frame in frames:
        end = read_end(store, frame.request_id)
        if end is not None and end[0] == frame.epoch and end[1] >= entry_position(frame):
            taken.add(frame.request_id)
    return taken


def after_gaps(
    store: "redis.Redis[bytes]", frames: Sequence[TokenFrame], gapped: AbstractSet[str]
) -> list[TokenFrame]:
    """Drops what follows a gap, and ends such a stream with an error right at the end of its log.

    `gapped` names the requests of which frames were given up. Raises: redis.RedisError.
    """
    kept = []
    for frame in frames:
        if frame.request_id not in gapped:
            kept.append(frame)
        elif frame.is_last:
            end = read_end(store, frame.request_id)
            start = end[1] if end is not None and end[0] == frame.epoch else 0
            kept.append(error_frame(frame, start, frame.error or _GIVEN_UP))
    return kept
