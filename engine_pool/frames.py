"""What a producer does to frames before they go out. Pure."""

from collections.abc import Sequence

import msgspec

from engine_pool.token_log import StreamError, TokenFrame


def error_frame(frame: TokenFrame, start: int, error: StreamError) -> TokenFrame:
    """Returns the frame that ends a frame's stream with an error, after `start` tokens."""
    return TokenFrame(frame.request_id, frame.epoch, start, (), frame.instance, error=error)


def combine(frames: Sequence[TokenFrame]) -> list[TokenFrame]:
    """Joins successive frames of a request into one, where nothing but tokens and an end is in
    them."""
    joined: dict[str, TokenFrame] = {}
    done: list[TokenFrame] = []
    for frame in frames:
        before = joined.get(frame.request_id)
        if before is None:
            joined[frame.request_id] = frame
        elif _can_join(before, frame):
            joined[frame.request_id] = msgspec.structs.replace(
                frame,
                start=before.start,
                token_ids=before.token_ids + frame.token_ids,
                cached_tokens=before.cached_tokens,
                queue_ms=before.queue_ms,
                prefill_ms=before.prefill_ms,
            )
        else:
            done.append(before)
            joined[frame.request_id] = frame
    return done + list(joined.values())


def _can_join(before: TokenFrame, after: TokenFrame) -> bool:
    has_detail = before.detail is not None or after.detail is not None
    # A last frame without tokens takes an entry id of its own; joined, the id would fall short of
    # it.
    is_plain = after.error is None and not before.is_last and bool(after.token_ids)
    return is_plain and not has_detail and before.epoch == after.epoch and before.end == after.start


def entry_position(frame: TokenFrame) -> int:
    """Returns the second part of the frame's entry id."""
    return int(frame.entry_id.partition("-")[2])
