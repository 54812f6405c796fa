"""Numbers the events of a stream, so that it can be resumed after any of them.

An event's id is `<request id>:<ordinals>`: how many chunks of each choice have been sent, joined by
dots, then those that belong to no choice (usage). The chunks of one choice follow from the tokens
in the log alone, whatever the timing; so another web process that replays the log gives the same
chunk the same ordinal, and drops what the client has. Between choices the order may differ, hence
one ordinal each.

A client that asks for it is told of moves and replays, too, by comments: they belong to the chunk
after them and come in one block with it (see PING). Pure: text in, text out.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controlplane.gateway.call import Migration

DONE: Final = "data: [DONE]\n\n"
PING: Final = b": ping\n"
"""A comment; keeps proxies from closing a connection that waits for its next token. Without a blank
line, after which openai-python takes it for an event without data, and fails."""

TellMove = Callable[[Migration], str]
"""Makes the text that stands before the chunk after a move."""

_ID: Final = re.compile(r"([A-Za-z0-9_-]{1,100}):([0-9]{1,9}(?:\.[0-9]{1,9}){0,1024})")
_CREATED: Final = re.compile(r'"created":(\d+)')
_CHOICE: Final = re.compile(r'"choices":\[(?:\{"index":(\d+)|\])')


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a stream."""

    request_id: str
    ordinals: tuple[int, ...]


def parse_mark(text: str) -> Mark | None:
    """Returns the place that a `Last-Event-ID` names, None when it is not one of ours."""
    match = _ID.fullmatch(text.strip())
    if match is None:
        return None
    return Mark(match[1], tuple(int(part) for part in match[2].split(".")))


def move_comment(migration: Migration) -> str:
    """Returns the line that tells of a move; part of the block of the chunk after it."""
    return f": {migration.kind} {json.dumps(migration.facts)}\n"


class Numbering:
    """Of one stream as one connection gets it."""

    def __init__(
        self,
        request_id: str,
        choices: int,
        created_unix_s: int,
        after: Mark | None = None,
        tell_move: TellMove | None = None,
    ) -> None:
        """`tell_move`: None for a client that has not asked to hear of moves."""
        self._request_id = request_id
        self._choices = choices
        self._created = f'"created":{created_unix_s}'
        self._own_created: str | None = None
        self._sent = [0] * (choices + 1 if choices > 1 else 1)
        self._skip = [0] * len(self._sent)
        if after is not None:
            for index, count in enumerate(after.ordinals[: len(self._skip)]):
                self._skip[index] = count
        self.has_failed = False
        self._tell_move = tell_move
        self._moves: dict[int, str] = {}
        """Slot -> what is to be told before its next chunk."""

    def migrated(self, migration: Migration) -> None:
        """Notes a move, to be told with the next chunk of its choice."""
        if self._tell_move is not None:
            slot = migration.choice if self._choices > 1 else 0
            self._moves[slot] = self._moves.get(slot, "") + self._tell_move(migration)

    def event(self, chunk: str) -> str | None:
        """Returns the event for a chunk of vLLM's, None when the client has it already.

        After a failure there is no [DONE]: the answer is not done.
        """
        if chunk == DONE:
            return None if self.has_failed else DONE
        if chunk.startswith('data: {"error"'):
            self.has_failed = True
            return chunk
        index = self._slot(chunk)
        self._sent[index] += 1
        told = self._moves.pop(index, "")
        if self._sent[index] <= self._skip[index]:
            return None
        return f"{told}id: {self._request_id}:{self._ordinals()}\n{self._dated(chunk)}"

    def _slot(self, chunk: str) -> int:
        if self._choices == 1:
            # One choice: all chunks have one order, the usage's too.
            return 0
        match = _CHOICE.search(chunk)
        return int(match[1]) if match is not None and match[1] is not None else self._choices

    def _ordinals(self) -> str:
        # A client that has not seen a chunk yet must keep what it had before it came back.
        return ".".join(
            str(max(sent, skip)) for sent, skip in zip(self._sent, self._skip, strict=True)
        )

    def _dated(self, chunk: str) -> str:
        """Gives the chunk the request's own time, not that of a replay."""
        if self._own_created is None:
            match = _CREATED.search(chunk)
            self._own_created = match[0] if match else self._created
        if self._own_created == self._created:
            return chunk
        return chunk.replace(self._own_created, self._created, 1)
