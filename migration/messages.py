"""What two engines say to each other during a move, as length-free msgpack over a Link (links.py).

The source sends Prepare, Stage, Last, Commit, Abort, Ask; the destination Ack, Received, Refused,
Committed, Tokens. Measure and Measured ask for the bandwidth of the way. `move` is the migration's
id in all of them. The data itself goes over a channel (kv_plane.py).
"""

import msgspec

from engine_pool.ports import EngineRequest
from migration.ports import KvShape


class Prepare(msgspec.Struct, array_like=True, frozen=True, tag="prepare"):
    """PRE-ALLOC of the whole move: may this request come, is there room for what it has now?"""

    move: str
    request: EngineRequest
    """With the epoch in which the destination would go on."""
    output_token_ids: tuple[int, ...]
    room_tokens: int
    """0: queued, no KV comes."""
    shape: KvShape
    channel: str
    offer: str | None
    """How to join the channel; None: it is open already."""
    source: str
    source_incarnation: str
    expires_in_s: float
    """What is left of the request's longest life."""
    reason: str
    asked_by: str


class Stage(msgspec.Struct, array_like=True, frozen=True, tag="stage"):
    """PRE-ALLOC of a copy: is there room, and are you ready to receive?"""

    move: str
    number: int
    room_tokens: int
    first_block: int
    """Place of the first block among the request's blocks."""
    blocks: int


class Last(msgspec.Struct, array_like=True, frozen=True, tag="last"):
    """The last blocks come now (room for them was given), and this is all else of the request."""

    move: str
    number: int
    first_block: int
    blocks: int
    computed_tokens: int
    output_token_ids: tuple[int, ...]
    state: bytes


class Commit(msgspec.Struct, array_like=True, frozen=True, tag="commit"):
    """The request is yours."""

    move: str


class Abort(msgspec.Struct, array_like=True, frozen=True, tag="abort"):
    """Forget it. After a commit: its client left, end it."""

    move: str
    code: str
    why: str
    is_channel_broken: bool
    """A transfer may be half done: close the channel."""


class Ask(msgspec.Struct, array_like=True, frozen=True, tag="ask"):
    """What became of this move? Answered by Committed or Refused, for good."""

    move: str


class Ack(msgspec.Struct, array_like=True, frozen=True, tag="ack"):
    move: str
    number: int
    """Of the stage; 0 answers Prepare."""
    held_blocks: int
    cached_blocks: int


class Received(msgspec.Struct, array_like=True, frozen=True, tag="received"):
    move: str
    number: int
    write_ms: float


class Refused(msgspec.Struct, array_like=True, frozen=True, tag="refused"):
    """This side will never decode the request."""

    move: str
    code: str
    why: str
    is_channel_broken: bool


class Committed(msgspec.Struct, array_like=True, frozen=True, tag="committed"):
    move: str


class Tokens(msgspec.Struct, array_like=True, frozen=True, tag="tokens"):
    """Times of the destination's first tokens, in ms after it sent Committed."""

    move: str
    after_ms: tuple[float, ...]
    is_final: bool


class Measure(msgspec.Struct, array_like=True, frozen=True, tag="measure"):
    """I send you that much over this channel: tell me when it is there. 0 bytes: an echo."""

    move: str
    channel: str
    offer: str | None
    size_bytes: int
    shape: KvShape


class Measured(msgspec.Struct, array_like=True, frozen=True, tag="measured"):
    move: str
    error: str
    """Empty: it is there."""


ToDestination = Prepare | Stage | Last | Commit | Abort | Ask | Measure
ToSource = Ack | Received | Refused | Committed | Tokens | Measured
Message = ToDestination | ToSource

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def encode(message: Message) -> bytes:
    """Returns the message for a Link."""
    return _encode(message)


def decode(blob: bytes) -> Message:
    """Raises: msgspec.DecodeError (a ValueError) for what is no message of this version."""
    return _decode(blob)
