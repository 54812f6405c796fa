"""Made-up moves: as they end, as they go on, and as they break off."""

import time
from collections.abc import Iterator
from dataclasses import replace

from migration.report import MessageReport, MoveReport, MoveState, StageReport

BLOCK_BYTES = 2_097_152
STEP_MS = 20.2
STARTED_UNIX_S = 1_800_000_000.0
DONE = (MoveState.COMMITTED, MoveState.ABORTED)


def _messages(*told: tuple[float, str, str, str]) -> tuple[MessageReport, ...]:
    sides = {"s": "source", "d": "destination"}
    return tuple(MessageReport(at, sides[side], name, note) for at, side, name, note in told)


def committed(*, started_unix_s: float = STARTED_UNIX_S, migration_id: str = "mig-1") -> MoveReport:
    """A request of 3,612 tokens in two copies and the last block."""
    return MoveReport(
        migration_id=migration_id,
        request_id="req-8f2c41",
        seq=1000,
        state=MoveState.COMMITTED,
        source="i-02",
        source_incarnation="one",
        destination="i-03",
        destination_incarnation="one",
        started_unix_s=started_unix_s,
        at_unix_s=started_unix_s + 0.43,
        asked_by="operator olga",
        reason="one long request fills i-02. Destination: the freest, i-03",
        priority_class="normal",
        tenant="acme-chat",
        prompt_tokens=3419,
        tokens_at_start=3612,
        tokens_at_pause=3630,
        output_tokens_at_pause=211,
        block_size_tokens=16,
        block_bytes=BLOCK_BYTES,
        reserved_blocks=227,
        blocks_left=0,
        sent_bytes=227 * BLOCK_BYTES,
        stages=(
            StageReport(1, False, 6.0, 335.0, 225, 225 * BLOCK_BYTES, 21.0),
            StageReport(2, False, 345.0, 4.0, 1, BLOCK_BYTES),
            StageReport(3, True, 363.0, 4.2, 1, BLOCK_BYTES),
        ),
        messages=_messages(
            (0.0, "s", "prepare", "room for 3,632 tokens"),
            (5.9, "d", "ack", "227 blocks held"),
            (6.0, "s", "stage", "copy 1, 225 blocks"),
            (6.1, "d", "ack", ""),
            (341.0, "d", "received", "copy 1"),
            (341.2, "s", "stage", "copy 2, 1 block"),
            (345.0, "d", "ack", ""),
            (349.0, "d", "received", "copy 2"),
            (363.0, "s", "last", "1 block, epoch 3 to 4"),
            (367.2, "d", "received", "the last"),
            (367.2, "s", "commit", ""),
            (372.0, "d", "committed", ""),
        ),
        paused_ms=363.0,
        committed_ms=372.0,
        first_token_ms=392.0,
        ended_ms=372.0,
        downtime_ms=29.8,
        source_token_ms=tuple(round(362.2 - STEP_MS * i, 1) for i in reversed(range(24))),
        destination_token_ms=tuple(round(392.0 + 19.1 * i, 1) for i in range(19)),
        source_step_ms=20.5,
        source_step_before_ms=20.1,
        source_freeness=-25.1,
        destination_freeness=204.0,
    )


def going_on(elapsed_ms: float, *, started_unix_s: float = STARTED_UNIX_S) -> MoveReport:
    """The same move at some time of its way, as its source would report it then."""
    done = committed(started_unix_s=started_unix_s)
    state = MoveState.RESERVING
    if elapsed_ms >= 6:
        state = MoveState.COPYING
    if elapsed_ms >= 363:
        state = MoveState.PAUSED
    stages = tuple(
        replace(s, took_ms=min(s.took_ms, elapsed_ms - s.started_ms))
        for s in done.stages
        if s.started_ms < elapsed_ms
    )
    share = min(1.0, max(0.0, (elapsed_ms - 6) / 335))
    return replace(
        done,
        seq=int(elapsed_ms),
        state=state,
        at_unix_s=started_unix_s + elapsed_ms / 1000,
        stages=stages,
        messages=tuple(m for m in done.messages if m.at_ms <= elapsed_ms),
        blocks_left=round(226 * (1 - share)),
        sent_bytes=round(226 * share) * BLOCK_BYTES,
        tokens_at_pause=None if elapsed_ms < 363 else 3630,
        output_tokens_at_pause=None if elapsed_ms < 363 else 211,
        paused_ms=None if elapsed_ms < 363 else 363.0,
        committed_ms=None,
        first_token_ms=None,
        ended_ms=None,
        downtime_ms=None,
        source_token_ms=tuple(t for t in done.source_token_ms if t <= elapsed_ms),
        destination_token_ms=(),
    )


def aborted(*, started_unix_s: float = STARTED_UNIX_S, migration_id: str = "mig-2") -> MoveReport:
    """The destination had no room for the second copy."""
    return replace(
        going_on(180.0, started_unix_s=started_unix_s),
        migration_id=migration_id,
        request_id="req-77ab02",
        state=MoveState.ABORTED,
        ended_ms=180.0,
        seq=999,
        asked_by="rebalancer",
        reason="i-02 -25.1 is under 3 and i-03 204 over 30",
        abort_code="no_blocks",
        abort_reason="i-03 had 12 free blocks and needed 41",
    )


def queued(*, started_unix_s: float = STARTED_UNIX_S, migration_id: str = "mig-3") -> MoveReport:
    """A waiting request: no copy."""
    return MoveReport(
        migration_id=migration_id,
        request_id="req-waits",
        seq=4,
        state=MoveState.COMMITTED,
        source="i-02",
        source_incarnation="one",
        destination="i-01",
        destination_incarnation="one",
        started_unix_s=started_unix_s,
        at_unix_s=started_unix_s + 0.012,
        asked_by="drain",
        reason="i-02 drains",
        is_queued=True,
        prompt_tokens=900,
        paused_ms=3.0,
        committed_ms=9.0,
        ended_ms=9.0,
        messages=_messages(
            (0.5, "s", "prepare", ""),
            (2.8, "d", "ack", ""),
            (6.0, "s", "commit", ""),
            (9.0, "d", "committed", ""),
        ),
    )


def bare(state: MoveState, *, started_unix_s: float = STARTED_UNIX_S) -> MoveReport:
    """Everything that may be absent is absent."""
    return MoveReport(
        migration_id=f"bare-{state.value}",
        request_id="req-bare",
        seq=0,
        state=state,
        source="i-01",
        source_incarnation="",
        destination="i-02",
        destination_incarnation="",
        started_unix_s=started_unix_s,
        at_unix_s=started_unix_s,
        asked_by="",
        reason="",
    )


def every_kind() -> Iterator[MoveReport]:
    yield committed()
    yield aborted()
    yield queued()
    yield from (going_on(at) for at in (0.0, 3.0, 100.0, 348.0, 365.0))
    yield from (bare(state) for state in MoveState)


def several(now_unix_s: float | None = None) -> list[MoveReport]:
    """Some that ended in the last minutes and some that go on, oldest first."""
    now_unix_s = time.time() if now_unix_s is None else now_unix_s
    ended = [
        replace(
            committed(started_unix_s=now_unix_s - 240 + 12 * i, migration_id=f"old-{i}"),
            request_id=f"req-old{i:02d}",
            asked_by="rebalancer",
            reason="i-02 -25.1 is under 48 and i-03 204 over 160. Lowest with highest",
            tokens_at_pause=400 + 700 * i,
            downtime_ms=27.0 + 0.9 * i % 5,
        )
        for i in range(6)
    ]
    return [
        *ended,
        aborted(started_unix_s=now_unix_s - 100),
        queued(started_unix_s=now_unix_s - 90),
        committed(started_unix_s=now_unix_s - 36),
    ]
