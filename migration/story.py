"""What has happened to one move so far, noted by its source as it goes: the makings of its reports.

Only the agent's thread writes here, but for the token times, which the step thread appends.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from migration import messages
from migration.engine_side import Look
from migration.ports import KvShape
from migration.report import (
    TOKEN_TIMES_KEPT,
    MessageReport,
    MoveReport,
    MoveState,
    StageReport,
)
from migration.wish import MoveWish

MESSAGES_KEPT = 64
"""Of the handshake: a move with the most copies has 30."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The source's steps at one moment (EngineSide.step_ms)."""

    steps: int
    total_ms: float
    mean_ms: float | None


@dataclass(slots=True)
class _Stage:
    number: int
    is_last: bool
    started_ms: float
    blocks: int
    bytes: int
    gather_ms: float = 0.0
    ended_ms: float | None = None


@dataclass(slots=True)
class MoveStory:
    """One move's. `clock`: monotonic seconds; `wall_clock`: unix seconds."""

    base: MoveReport
    steps_before: StepTimes
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    began_s: float = field(init=False)
    paused_ms: float | None = None
    tokens_at_pause: int | None = None
    output_tokens_at_pause: int | None = None
    committed_ms: float | None = None
    ended_ms: float | None = None
    cached_blocks: int = 0
    reserved_blocks: int = 0
    blocks_left: int | None = None
    source_step_ms: float | None = None
    abort_code: str = ""
    abort_reason: str = ""
    source_tokens_s: deque[float] = field(default_factory=lambda: deque(maxlen=TOKEN_TIMES_KEPT))
    destination_token_ms: tuple[float, ...] = ()
    _stages: list[_Stage] = field(default_factory=list)
    _messages: deque[MessageReport] = field(default_factory=lambda: deque(maxlen=MESSAGES_KEPT))
    _seq: int = 0

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    def now_ms(self) -> float:
        return (self.clock() - self.began_s) * 1000

    def on_tokens(self, count: int, at_s: float) -> None:
        """Notes tokens of the source. In the step thread."""
        self.source_tokens_s.append(at_s)

    def note_message(self, sender: str, name: str, note: str = "") -> None:
        self._messages.append(MessageReport(round(self.now_ms(), 3), sender, name, note))

    def begin_stage(self, number: int, blocks: int, block_bytes: int, *, is_last: bool) -> None:
        stage = _Stage(number, is_last, self.now_ms(), blocks, blocks * block_bytes)
        self._stages.append(stage)

    def note_gather(self, gather_ms: float) -> None:
        if self._stages:
            self._stages[-1].gather_ms = gather_ms

    def end_stage(self) -> None:
        if self._stages and self._stages[-1].ended_ms is None:
            self._stages[-1].ended_ms = self.now_ms()

    def note_pause(self, computed_tokens: int, output_tokens: int, steps: StepTimes) -> None:
        self.paused_ms = self.now_ms()
        self.tokens_at_pause, self.output_tokens_at_pause = computed_tokens, output_tokens
        self.note_steps(steps)

    def note_steps(self, steps: StepTimes) -> None:
        """Notes how long the source's steps were since the start of the move."""
        count = steps.steps - self.steps_before.steps
        if count:
            self.source_step_ms = (steps.total_ms - self.steps_before.total_ms) / count

    def report(self, state: MoveState) -> MoveReport:
        """Returns the report of now, newer than all before."""
        self._seq += 1
        source_ms = tuple(round((at - self.began_s) * 1000, 3) for at in self.source_tokens_s)
        first_ms = self.destination_token_ms[0] if self.destination_token_ms else None
        downtime_ms = None
        if source_ms and first_ms is not None and self.paused_ms is not None:
            downtime_ms = round(first_ms - source_ms[-1], 3)
        return replace(
            self.base,
            seq=self._seq,
            state=state,
            at_unix_s=self.wall_clock(),
            tokens_at_pause=self.tokens_at_pause,
            output_tokens_at_pause=self.output_tokens_at_pause,
            cached_blocks=self.cached_blocks,
            reserved_blocks=self.reserved_blocks,
            blocks_left=self.blocks_left,
            sent_bytes=sum(s.bytes for s in self._stages if s.ended_ms is not None),
            stages=tuple(map(self._stage_report, self._stages)),
            messages=tuple(self._messages),
            paused_ms=self.paused_ms,
            committed_ms=self.committed_ms,
            first_token_ms=first_ms,
            ended_ms=self.ended_ms,
            downtime_ms=downtime_ms,
            source_token_ms=source_ms,
            destination_token_ms=self.destination_token_ms,
            source_step_ms=self.source_step_ms,
            abort_code=self.abort_code,
            abort_reason=self.abort_reason,
        )

    def _stage_report(self, stage: _Stage) -> StageReport:
        ended_ms = self.now_ms() if stage.ended_ms is None else stage.ended_ms
        return StageReport(
            number=stage.number,
            is_last=stage.is_last,
            started_ms=round(stage.started_ms, 3),
            took_ms=round(ended_ms - stage.started_ms, 3),
            blocks=stage.blocks,
            bytes=stage.bytes,
            gather_ms=round(stage.gather_ms, 3),
        )


def first_report(
    wish: MoveWish,
    look: Look,
    shape: KvShape,
    *,
    source: str,
    source_incarnation: str,
    step_before_ms: float | None,
    now_unix_s: float,
) -> MoveReport:
    """Returns what is known of a move at its start; `seq` and `state` are the story's to set."""
    return MoveReport(
        migration_id=wish.migration_id,
        request_id=wish.request_id,
        seq=0,
        state=MoveState.RESERVING,
        source=source,
        source_incarnation=source_incarnation,
        destination=wish.destination,
        destination_incarnation=wish.destination_incarnation,
        started_unix_s=now_unix_s,
        at_unix_s=now_unix_s,
        asked_by=wish.asked_by,
        reason=wish.reason,
        priority_class=look.request.priority_class.value,
        tenant=look.request.tenant,
        is_queued=look.outgoing.is_queued,
        prompt_tokens=look.request.prompt_tokens,
        tokens_at_start=look.outgoing.computed_tokens,
        block_size_tokens=shape.block_size_tokens,
        block_bytes=shape.block_bytes,
        source_step_before_ms=step_before_ms,
        source_freeness=wish.source_freeness,
        destination_freeness=wish.destination_freeness,
    )


def note_of(message: messages.Message) -> str:
    """Returns what a message of the handshake says, in a few words."""
    match message:
        case messages.Prepare():
            return f"room for {message.room_tokens} tokens" if message.room_tokens else "queued"
        case messages.Stage() | messages.Last():
            return f"{message.blocks} blocks"
        case messages.Ack():
            cached = f", {message.cached_blocks} cached" if message.cached_blocks else ""
            return f"{message.held_blocks} blocks held{cached}"
        case messages.Refused() | messages.Abort():
            return message.why
        case _:
            return ""
