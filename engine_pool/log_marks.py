"""What else stands in a token log besides frames: fences, and on some of them why they are there.

A fence that begins a replay names the life that was lost, so that whoever reads the log later knows
how often a request was sent elsewhere, and what for. The fence's epoch is its entry's.
"""

import struct
from dataclasses import dataclass
from typing import Final

import msgspec

_LENGTH: Final = struct.Struct(">I")

FENCE_EPOCHS: Final = 1000
"""By how much a fence raises the epoch. A move raises it by one or two without a trace in the log
until its destination appends, and a queued request may move several times: all those producers are
to be shut out."""


class Lost(msgspec.Struct, array_like=True, frozen=True, tag="l"):
    """A request's life at an instance is over, and the request is not; the content of a fence, and
    what a living engine tells the request's reader when it sends it elsewhere."""

    request_id: str
    instance: str
    incarnation: str = ""
    """Empty when whoever wrote it did not know."""
    why: str = ""
    is_death: bool = True
    """The engine died or hung with it; not: it was sent elsewhere, or forgotten."""
    has_run: bool = True
    """It may have been in the engine's batch; not: it was seen in the queue only."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark where it stands in a log."""

    epoch: int
    """All producers of lower epochs are shut out."""
    lost: Lost


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Lost)


def encode_mark(mark: Lost) -> bytes:
    """Returns it as a channel's message and a fence's value: length-prefixed msgpack."""
    body = _encoder.encode(mark)
    return _LENGTH.pack(len(body)) + body


def decode_mark(value: bytes) -> Lost | None:
    """Returns what a fence's value says, None when it is a plain fence."""
    if len(value) <= _LENGTH.size:
        return None
    return _decoder.decode(memoryview(value)[_LENGTH.size :])


def epoch_of(entry_id: bytes) -> int:
    """Returns the epoch of a log's entry."""
    return int(entry_id.partition(b"-")[0])
