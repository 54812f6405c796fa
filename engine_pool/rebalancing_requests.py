"""The requests of an instance as a round of rebalancing sees them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine_pool.policy.standing import need_tokens
from engine_pool.types import InstanceLoad, RequestLoad
from migration.wish import SELF_TEST

TEST_PREFIX: Final = f"{SELF_TEST}-"
"""Of the self-test's requests, which it moves itself (self_test.py)."""


@dataclass(frozen=True, slots=True)
class MovableRequest:
    """A request as the round sees it (policy/selection.py, Movable)."""

    load: RequestLoad
    need_tokens: int
    is_held: bool
    """It could not move lately, or is on its way."""

    @property
    def rank(self) -> int:
        return self.load.priority_class.rank

    @property
    def kv_tokens(self) -> int:
        return self.load.kv_tokens

    @property
    def name(self) -> str:
        return self.load.request_id

    @property
    def can_move(self) -> bool:
        # A prompt that is being computed would be waited for.
        is_prefilling = self.load.kv_tokens > 0 and self.load.output_tokens == 0
        return not self.is_held and not is_prefilling


def movable_requests(load: InstanceLoad, is_held: Callable[[str], bool]) -> list[MovableRequest]:
    """Returns running requests, then queued ones as they stand in line."""
    return [
        MovableRequest(
            r,
            need_tokens(r, load.block_size_tokens),
            is_held(r.request_id) or r.request_id.startswith(TEST_PREFIX),
        )
        for r in (*load.running, *load.waiting)
    ]
