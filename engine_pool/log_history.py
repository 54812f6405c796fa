"""All that a request's log says of it so far: its tokens, and the lives that it has lost."""

from dataclasses import dataclass, field
from typing import Final

from engine_pool.replay_rules import Life
from engine_pool.token_log import TokenFrame, TokenLogReader

PAGE_ENTRIES: Final = 512
"""Entries of one read: some 60 kB."""


@dataclass(slots=True)
class History:
    """Of one request, up to where its log was read."""

    token_ids: list[int] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    """Those that fences name, oldest first."""
    is_ended: bool = False
    is_whole: bool = True
    """Each frame began where the one before ended."""

    def take(self, frame: TokenFrame) -> None:
        """Adds the next frame."""
        self.is_whole &= frame.start == len(self.token_ids)
        self.token_ids += frame.token_ids
        self.is_ended |= frame.is_last


async def read_history(log: TokenLogReader, request_id: str) -> History:
    """Reads a log whose producers are shut out, from its beginning.

    Raises: redis.RedisError.
    """
    found = History()
    after: str | None = None
    while True:
        entries, after_next = await log.read_all_after(
            request_id, after_entry=after, count=PAGE_ENTRIES
        )
        for entry in entries:
            if isinstance(entry, TokenFrame):
                found.take(entry)
                continue
            lost = entry.lost
            found.lives.append(
                Life(
                    lost.instance,
                    lost.incarnation,
                    len(found.token_ids),
                    lost.is_death,
                    lost.has_run,
                    lost.why,
                )
            )
        if after_next is None:
            return found
        after = after_next
