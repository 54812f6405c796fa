"""What somebody wants moved: sent to the source's engine, which carries it out or says why not."""

from dataclasses import dataclass
from typing import Final

SELF_TEST: Final = "self-test"
"""`asked_by` of the pool's own moves, which go on while a failed self-test forbids all others."""


@dataclass(frozen=True, slots=True)
class MoveWish:
    """One request to one other instance. Everything but the ids is for the report."""

    migration_id: str
    request_id: str
    destination: str
    destination_incarnation: str
    destination_actor: str
    """Ray's name of the destination's actor, from which the source gets its invitation."""
    asked_by: str
    reason: str
    source_freeness: float | None = None
    """Of both at the decision, in decode steps; None: idle."""
    destination_freeness: float | None = None
