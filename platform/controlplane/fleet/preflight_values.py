"""What a pre-flight finds, and what it says about it. Nothing here acts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine_pool.move_facts import SelfTest
from migration.ports import KvShape
from migration.stages import StageLimits


class Applies(StrEnum):
    """Whether an obstacle is in the way here."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    PER_REQUEST = "per request"
    """It depends on the request."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that refuses a move."""

    what: str
    why: str
    applies: Applies


@dataclass(frozen=True, slots=True)
class PairWay:
    """What was measured from one instance to another."""

    source: str
    destination: str
    bytes_per_s: float | None
    """None: it could not be measured; `problem` says why."""
    round_trip_ms: float | None
    problem: str = ""

    @property
    def gb_per_s(self) -> float | None:
        return None if self.bytes_per_s is None else self.bytes_per_s / 1e9


@dataclass(frozen=True, slots=True)
class Pair:
    """Two instances that were not measured."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a move of a request of one length would take, over the slowest measured way."""

    tokens: int
    stages: int
    """Copies, the last one included."""
    copy_blocks: tuple[int, ...]
    """Blocks of each copy before the pause."""
    last_blocks: int
    copy_ms: float
    downtime_ms: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a run has gathered and measured."""

    at_unix_s: float
    serving: tuple[str, ...]
    is_switched_on: bool
    allowed: bool | None
    """What the pool process says; None: nothing."""
    why: str
    self_test: SelfTest | None
    shapes: Mapping[str, KvShape]
    """Of serving instances that have told theirs."""
    ways: tuple[PairWay, ...]
    left_out: tuple[Pair, ...]
    step_ms: float | None
    """Decode step of the slowest serving instance; None: none has made one."""
    max_model_len: int | None
    limits: StageLimits
    copy_share: float
    at_once: int
    """Moves of one instance at the same time."""


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """One run's result. Kept in the store as JSON, so fields get defaults when they are added."""

    at_unix_s: float
    ok: bool
    verdict: str
    """One sentence."""
    serving: tuple[str, ...]
    token_bytes: int | None
    """KV bytes of a token; None: no instance has told its shape."""
    block_bytes: int | None
    block_size_tokens: int | None
    ways: tuple[PairWay, ...]
    left_out: tuple[Pair, ...]
    """Pairs that were not measured."""
    slowest: Pair | None
    """The way that the forecasts are for."""
    step_ms: float
    is_step_assumed: bool
    """No engine has made a step yet."""
    forecasts: tuple[Forecast, ...]
    self_test: SelfTest | None
    obstacles: tuple[Obstacle, ...]
