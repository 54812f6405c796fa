"""One move of a simulated run: where it stands, and what it came to."""

from dataclasses import dataclass

from engine_pool.simulator.engine_model import Engine
from engine_pool.simulator.sim_request import SimRequest
from migration.protocol import ENDS, DestinationState, SourceState


@dataclass(slots=True, eq=False)
class Move:
    """One move, whatever became of it. Times are seconds of virtual time."""

    request: SimRequest
    source: Engine
    destination: Engine
    reason: str
    started_s: float
    is_queued: bool
    """It waited when the move began."""
    source_state: SourceState = SourceState.RESERVING
    destination_state: DestinationState = DestinationState.HOLDING
    copies: int = 0
    sent_blocks: int = 0
    stage_blocks: int = 0
    last_blocks: int = 0
    is_receiving: bool = False
    is_awaiting_quiet: bool = False
    parked_s: float | None = None
    adopted_s: float | None = None
    left_s: float | None = None
    """When the source freed it."""
    ended_s: float | None = None
    abort_code: str = ""
    """Empty: it was committed, or still goes on."""

    @property
    def is_over(self) -> bool:
        return self.source_state in ENDS and self.destination_state in ENDS
